"""One forward pass of the model over some rows of the cache.

Shapes: rows ``B``, new tokens ``T``, cached tokens ``L``, vocabulary ``V``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from trainer.engine.kv_cache import RowCache, Window
from trainer.errors import UsageError

_COLUMNS_PER_PASS = 512
"""Longer prompts are computed in pieces of this many tokens, so that the mask stays small."""
_CHECK_TOLERANCE = 0.05
_NO_LIMIT = 1 << 20


class CachedModel:
    """A causal language model with its cache: appends tokens to rows and returns the logits of the last ones.

    Raises: UsageError, where the architecture attends in a way that this cache does not serve.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.cache = RowCache(config.num_hidden_layers)
        self.device = next(model.parameters()).device
        self._dtype = next(model.parameters()).dtype
        # the keyword for the cache was renamed within transformers 5
        self._cache_keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.longest = _longest(config)
        self._require_same_logits_with_the_cache()

    def extend(self, first_row: int, new_tokens: list[list[int]], starts: list[int]) -> torch.Tensor:
        """Write ``new_tokens[i]`` into row ``first_row + i`` from position ``starts[i]``; logits ``[B, V]`` after each.

        The new tokens are aligned at their right, so that every row's last one stands in the last column; what pads
        them on the left is written to the spare column of the cache and attends to nothing that counts.
        """
        width = max(map(len, new_tokens))
        spare = self.cache.capacity
        ids_B_T, positions_B_T, writes_B_T = [], [], []
        for tokens, start in zip(new_tokens, starts, strict=True):
            padding, end = width - len(tokens), start + len(tokens)
            ids_B_T.append([0] * padding + tokens)
            positions_B_T.append([0] * padding + list(range(start, end)))
            writes_B_T.append([spare] * padding + list(range(start, end)))
        columns = (self._tensor(ids_B_T), self._tensor(positions_B_T), self._tensor(writes_B_T))
        for left in range(0, width, _COLUMNS_PER_PASS):
            logits_B_V = self._pass(first_row, *(part[:, left : left + _COLUMNS_PER_PASS] for part in columns))
        return logits_B_V

    def _pass(
        self, first_row: int, ids_B_T: torch.Tensor, positions_B_T: torch.Tensor, writes_B_T: torch.Tensor
    ) -> torch.Tensor:
        length = int(positions_B_T.max()) + 1
        self.cache.window = Window(first_row, writes_B_T, length)
        reach_L = torch.arange(length, device=self.device)
        mask_B_1_T_L = torch.zeros(*positions_B_T.shape, length, dtype=self._dtype, device=self.device)
        mask_B_1_T_L.masked_fill_(reach_L > positions_B_T[..., None], torch.finfo(self._dtype).min)
        output = self.model(
            input_ids=ids_B_T,
            attention_mask=mask_B_1_T_L[:, None],
            position_ids=positions_B_T,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_keyword: self.cache},
        )
        return output.logits[:, -1]

    def all_logits(self, ids: list[int]) -> torch.Tensor:
        """Logits ``[len(ids), V]`` at every position, computed beside the cache."""
        return self.model(input_ids=self._tensor([ids]), use_cache=False).logits[0]

    def _tensor(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def _require_same_logits_with_the_cache(self) -> None:
        """Compute two short rows with and without the cache; it also tells how many bytes a token takes."""
        vocabulary = self.model.config.get_text_config().vocab_size
        rows = [[i % vocabulary for i in range(1, 12)], [i * 7 % vocabulary for i in range(1, 6)]]
        self.cache.resize(2, 16)
        self.extend(0, [row[:3] for row in rows], [0, 0])
        logits_B_V = self.extend(0, [row[3:] for row in rows], [3, 3])
        expected_B_V = torch.stack([self.all_logits(row)[-1] for row in rows])
        scale = expected_B_V.float().abs().max().clamp(min=1.0)
        if float((logits_B_V - expected_B_V).float().abs().max() / scale) > _CHECK_TOLERANCE:
            raise UsageError(_unsupported(self.model.config.model_type, "its logits differ with this engine's cache"))


def _longest(config: Any) -> int:
    """How long a sequence may be for full attention to be what the model does: its positions, or its window."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise UsageError(_unsupported(config.model_type, f"it has layers of {', '.join(sorted(strange))}"))
    positions = getattr(config, "max_position_embeddings", None) or _NO_LIMIT
    slides = "sliding_attention" in kinds or not getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if slides else None
    return min(positions, window or positions)


def _unsupported(model_type: str, why: str) -> str:
    return (
        f"The embedded engine serves models whose layers attend to all that came before; {model_type!r} is not one: "
        f"{why}. Serve it with vLLM and give the trainer its address with --engine-url."
    )
