"""Whether what a regular expression finds is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from atroposlib.envs.reward_fns.answers.numbers import quantity, same_quantity
from atroposlib.envs.reward_fns.answers.plain_text import plain
from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted


@registry.register
class RegexExtractReward(RewardFunction):
    """1 where what ``pattern`` finds equals the right answer, else 0.

    ``pattern`` is a Python regular expression; ``group`` (a number or a name; by default the first group, or all that
    matches where there is none) is the answer. ``pick`` takes the "last" or the "first" that is found, after the last
    ``</think>`` if ``split_on_think_tag``. ``compare``: "text" (blanks and, unless ``case_sensitive``, case do not
    count), "number" (within ``tolerance``, see ``accuracy``), or "found" (it is enough that something is found; no
    right answer is needed).

    Range: 0 or 1. Source: the answer extraction that most environments write by hand.
    """

    cpu_bound = True  # a pattern may backtrack for ever
    independent = True

    def __init__(
        self,
        pattern: str,
        group: int | str | None = None,
        pick: Literal["last", "first"] = "last",
        compare: Literal["text", "number", "found"] = "text",
        case_sensitive: bool = False,
        split_on_think_tag: bool = True,
        multiline: bool = True,
        dotall: bool = True,
        tolerance: float = 1e-6,
        time_limit_s: float = 10.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        flags = (re.MULTILINE if multiline else 0) | (re.DOTALL if dotall else 0)
        try:
            self.pattern = re.compile(pattern, flags | (0 if case_sensitive else re.IGNORECASE))
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        self.group = group if group is not None else int(self.pattern.groups > 0)
        if self.group not in self.pattern.groupindex and self.group not in range(self.pattern.groups + 1):
            raise ValueError(f"pattern {pattern!r} has no group {group!r}")
        self.pick = pick
        self.compare = compare
        self.case_sensitive = case_sensitive
        self.split_on_think_tag = split_on_think_tag
        self.tolerance = float(tolerance)
        self.time_limit_s = time_limit_s

    @property
    def needs_answer(self) -> bool:
        """Unless it is enough that something is found."""
        return self.compare != "found"

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[Verdict]:
        """Find, and compare with ``ground_truth`` or ``solution``. Raises: RewardError where there is none."""
        texts = [self.get_content(completion) for completion in completions]
        if self.compare == "found":
            return [self._verdict(self._extract(text), None) for text in texts]
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        return [
            self._verdict(self._extract(text), accepted_answers(right)) for text, right in zip(texts, gold, strict=True)
        ]

    def _extract(self, text: str) -> str | None:
        said = after_thoughts(text) if self.split_on_think_tag else text
        found: str | None = None
        for match in self.pattern.finditer(said):
            found = match.group(self.group)
            if self.pick == "first":
                break
        return found

    def _verdict(self, found: str | None, accepted: Sequence[str] | None) -> Verdict:
        if found is None:
            return Verdict(0.0, f"{quoted(self.pattern.pattern)} finds nothing")
        if accepted is None:
            return Verdict(1.0, f"found {quoted(found)}")
        same = any(self._is_same(found, each) for each in accepted)
        truth = " or ".join(map(quoted, accepted))
        return Verdict(float(same), f"found {quoted(found)} {'=' if same else '≠'} {truth} (truth)")

    def _is_same(self, found: str, gold: str) -> bool:
        if self.compare == "number":
            here, there = quantity(plain(found)), quantity(plain(gold))
            return here is not None and there is not None and same_quantity(here, there, self.tolerance)
        left, right = " ".join(found.split()), " ".join(gold.split())
        return left == right if self.case_sensitive else left.casefold() == right.casefold()
