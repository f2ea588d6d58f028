"""Whether answers to a crossword are written as asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict, quoted

_CLUE: Final = re.compile(r"\b(\d{1,4})-(Across|Down):[ \t]{0,8}", re.IGNORECASE)
_END: Final = re.compile(r"[\n,;]")


@registry.register
class CrosswordFormatReward(TextReward):
    """``reward_value`` where there are answers such as ``1-Across: WORD`` and all are words, else 0.

    An answer ends at a comma, a semicolon, the end of the line or the next clue. With ``penalize_invalid_chars`` it may
    hold ``valid_chars`` (of either case) and blanks only. With ``format_patterns`` (regular expressions) one of these
    must be found instead of a clue.

    Range: 0 or ``reward_value``. Source: parameters of Atropos.
    """

    cpu_bound = True  # for the sake of patterns that backtrack for ever

    def __init__(
        self,
        format_patterns: Sequence[str] | None = None,
        reward_value: float = 1.0,
        penalize_invalid_chars: bool = True,
        valid_chars: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.format_patterns = [re.compile(each, re.IGNORECASE) for each in format_patterns or ()]
        self.reward_value = reward_value
        self.penalize_invalid_chars = penalize_invalid_chars
        self.valid_chars = frozenset(valid_chars.upper()) | {" "}

    def judge_text(self, text: str) -> Verdict:
        """Look at every answer."""
        if self.format_patterns and not any(each.search(text) for each in self.format_patterns):
            return Verdict(0.0, "none of the patterns is found")
        clues = [*_CLUE.finditer(text)]
        if not clues and not self.format_patterns:
            return Verdict(0.0, "there is no answer such as 1-Across: WORD")
        ends = [*(clue.start() for clue in clues), len(text)][1:]
        spans = [text[clue.end() : end] for clue, end in zip(clues, ends, strict=True)]
        answers = [_END.split(span, maxsplit=1)[0].strip() for span in spans]
        for answer in answers:
            if not answer or (self.penalize_invalid_chars and not self.valid_chars.issuperset(answer.upper())):
                return Verdict(0.0, f"{quoted(answer)} is no word")
        return Verdict(self.reward_value, f"{len(answers)} answers")
