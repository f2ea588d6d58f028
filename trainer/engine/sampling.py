"""From logits to tokens: how the next token is drawn, and which logprob is reported for it.

Two ways to report, named as vLLM names them (``--logprobs-mode``):

- ``raw_logprobs``: log_softmax of the model's logits, before temperature, top_k and top_p;
- ``processed_logprobs``: of the distribution that was truly sampled, log_softmax(logits / temperature) after the
  filters. With top_p = 1 and no top_k a trainer reproduces it exactly by dividing its logits by the temperature.

At temperature 1 without filters both are the same. A greedy token (temperature 0) is reported raw in both.

Shapes: sequences ``B``, vocabulary ``V``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.config import LogprobsMode


@dataclass(frozen=True)
class SamplingParams:
    """How one completion is to be sampled. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 filter nothing."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    top_logprobs: int = 0
    """How many alternatives to report beside the sampled token."""
    prompt_logprobs: int | None = None
    """How many alternatives to report at each position of the prompt; None reports nothing about it."""

    @property
    def filters(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True)
class Draw:
    """One token for each sequence; ``reported_B_V`` holds the logprobs its own was taken from."""

    ids: list[int]
    logprobs: list[float]
    reported_B_V: torch.Tensor

    def top(self, row: int, count: int) -> dict[int, float]:
        """The ``count`` likeliest tokens of a row, likeliest first."""
        values, ids = self.reported_B_V[row].topk(min(count, self.reported_B_V.shape[1]))
        return dict(zip(ids.tolist(), values.tolist(), strict=True))


def draw(
    logits_B_V: torch.Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None],
    shared: torch.Generator,
    mode: LogprobsMode = "raw_logprobs",
) -> Draw:
    """Sample one token per row; a row with a generator of its own uses that one and no other row's luck."""
    raw_B_V = torch.log_softmax(logits_B_V.float(), dim=-1)
    sampled_B_V = _sampled_distribution(raw_B_V, params)
    noise_B_V = torch.empty_like(sampled_B_V).exponential_(generator=shared)
    for row, own in enumerate(generators):
        if own is not None:
            noise_B_V[row].exponential_(generator=own)
    # argmax(p / e) with e ~ Exp(1) draws from p: the exponential race, one pass for the whole batch
    ids_B = (sampled_B_V.exp() / noise_B_V).argmax(dim=-1)
    greedy_B = torch.tensor([p.temperature == 0 for p in params], device=ids_B.device)
    ids_B = torch.where(greedy_B, raw_B_V.argmax(dim=-1), ids_B)
    reported_B_V = raw_B_V if mode == "raw_logprobs" else sampled_B_V
    logprobs_B = reported_B_V.gather(1, ids_B[:, None])[:, 0]
    return Draw(ids_B.tolist(), logprobs_B.tolist(), reported_B_V)


def _sampled_distribution(raw_B_V: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Logprobs after temperature and filters; a greedy row keeps its raw ones."""
    temperatures = [p.temperature or 1.0 for p in params]
    scaled_B_V = raw_B_V
    if any(t != 1.0 for t in temperatures):
        divisor_B_1 = torch.tensor(temperatures, device=raw_B_V.device)[:, None]
        scaled_B_V = torch.log_softmax(raw_B_V / divisor_B_1, dim=-1)
    if not any(p.filters for p in params):
        return scaled_B_V
    rows = [_filtered(row_V, p) if p.filters else row_V for row_V, p in zip(scaled_B_V, params, strict=True)]
    return torch.stack(rows)


def _filtered(logprobs_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Keep the ``top_k`` likeliest, of those the fewest that hold ``top_p`` of the mass; renormalised."""
    sorted_V, order_V = logprobs_V.sort(descending=True)
    drop_V = torch.zeros_like(sorted_V, dtype=torch.bool)
    if params.top_k > 0:
        drop_V[params.top_k :] = True
    if params.top_p < 1.0:
        probs_V = torch.softmax(sorted_V.masked_fill(drop_V, -torch.inf), dim=-1)
        drop_V |= probs_V.cumsum(0) - probs_V >= params.top_p
    drop_V[0] = False
    kept_V = torch.full_like(logprobs_V, -torch.inf).scatter(0, order_V, sorted_V.masked_fill(drop_V, -torch.inf))
    return torch.log_softmax(kept_V, dim=-1)
