"""A preference for answers that leave room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, gold_for_each
from atroposlib.envs.reward_fns.verdict import Verdict
from atroposlib.errors import RewardError


@registry.register
class LengthReward(RewardFunction):
    """min(1, max(0, 2 - 2·length / ``max_tokens``)): 1 up to half of ``max_tokens``, then a straight line to 0 there.

    Lengths are those given as ``token_lengths``, one per completion; else they are counted with ``tokenizer``; without
    either, words are counted. ``max_tokens`` may also stand in the ``config`` of the call (else its
    ``max_token_length`` counts).

    Range: 0 to 1. Source: the length penalty of Atropos' environments, for all completions instead of right ones only.
    """

    independent = True

    def __init__(self, max_tokens: int | None = None, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {max_tokens}")
        self.max_tokens = max_tokens

    def compute(
        self,
        completions: Sequence[Any],
        token_lengths: Sequence[int] | None = None,
        tokenizer: Any = None,
        config: Any = None,
        **_: Any,
    ) -> list[Verdict]:
        """Score each completion by its length. Raises: RewardError where ``max_tokens`` is nowhere to be found."""
        limit = self.max_tokens or _setting(config, "max_tokens") or _setting(config, "max_token_length")
        if not limit:
            raise RewardError("length needs max_tokens, as a parameter or in the config")
        if token_lengths is not None:
            lengths = gold_for_each(completions, token_lengths=list(token_lengths))
        else:
            lengths = [_length(self.get_content(completion), tokenizer) for completion in completions]
        unit = "words" if token_lengths is None and tokenizer is None else "tokens"
        return [
            Verdict(min(1.0, max(0.0, 2.0 - 2.0 * length / limit)), f"{length} {unit} of {limit}") for length in lengths
        ]


def _setting(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _length(text: str, tokenizer: Any) -> int:
    return len(text.split() if tokenizer is None else tokenizer.encode(text, add_special_tokens=False))
