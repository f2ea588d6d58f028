"""Whether a completion goes step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict

_TRANSITIONS: Final = (
    "first|second|third|fourth|fifth|firstly|secondly|thirdly|next|then|finally|subsequently|afterwards?|lastly|initially"
    "|eventually|therefore|to begin|let's begin|i'll first|after that|in conclusion|to solve|we begin by"
)
_INDICATORS: Final = {
    "numbered_steps": re.compile(r"\bstep\s{1,3}(\d{1,4})\b", re.IGNORECASE),
    "list_numbers": re.compile(r"^[ \t]{0,12}(\d{1,4})[.)][ \t]", re.MULTILINE),
    "bullet_points": re.compile(r"^[ \t]{0,12}[-*•][ \t]{1,4}(\S[^\n]{0,200})", re.MULTILINE),
    "transition_words": re.compile(
        rf"(?:^|[.!?:\n][ \t\n]{{0,4}})(?:[-*•#\d.)]{{1,4}} )?({_TRANSITIONS})\b", re.IGNORECASE
    ),
}
_WEIGHTS: Final = {"numbered_steps": 0.5, "list_numbers": 0.5, "bullet_points": 0.4, "transition_words": 0.3}


@registry.register
class ReasoningStepsReward(TextReward):
    """min(1, Σ weight·min(1, count / ``min_steps``) + ``base_score`` if there are more than ``min_words`` words).

    Counted are different ones only: numbers in "Step 1", numbers at the beginning of a line ("1."), bullet points, and
    words of transition ("First", "Then", "Finally") that begin a sentence. ``pattern_weights`` replaces the weights of
    ``numbered_steps`` (0.5), ``list_numbers`` (0.5), ``bullet_points`` (0.4) and ``transition_words`` (0.3).

    Range: 0 to 1. Source: parameters of Atropos, after the reasoning reward of Open-R1.
    """

    def __init__(
        self,
        min_words: int = 10,
        min_steps: int = 3,
        base_score: float = 0.1,
        pattern_weights: Mapping[str, float] | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        unknown = [name for name in pattern_weights or () if name not in _WEIGHTS]
        if unknown:
            raise ValueError(f"pattern_weights has {unknown[0]!r}; there are {', '.join(_WEIGHTS)}")
        if min_steps < 1:
            raise ValueError(f"min_steps must be 1 or more, not {min_steps}")
        self.min_words = min_words
        self.min_steps = min_steps
        self.base_score = base_score
        self.pattern_weights = {**_WEIGHTS, **(pattern_weights or {})}

    def judge_text(self, text: str) -> Verdict:
        """Count the indicators."""
        counts = {name: len({m.casefold().strip() for m in each.findall(text)}) for name, each in _INDICATORS.items()}
        score = sum(self.pattern_weights[name] * min(1.0, count / self.min_steps) for name, count in counts.items())
        words = len(text.split())
        if words > self.min_words:
            score += self.base_score
        found = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        return Verdict(min(1.0, score), f"{found or 'no steps'}; {words} words")
