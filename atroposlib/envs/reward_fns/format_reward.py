"""Whether a completion has the tags it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.answers.extraction import tagged
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict


@registry.register
class FormatReward(TextReward):
    """1 where a pair of one of the ``preferred_tags`` (of each, with ``require_all_tags``) is there, else 0.

    A pair is ``<tag>`` and, anywhere after it, ``</tag>``; it may be empty unless ``allow_empty`` is off.

    Range: 0 or 1. Source: the format reward of DeepSeek-R1 (arXiv 2501.12948, 2.2.2); parameters of Atropos.
    """

    def __init__(
        self,
        preferred_tags: Sequence[str] | None = None,
        require_all_tags: bool = False,
        case_sensitive: bool = False,
        allow_empty: bool = True,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.preferred_tags = list(preferred_tags or ("think", "answer"))
        self.require_all_tags = require_all_tags
        self.case_sensitive = case_sensitive
        self.allow_empty = allow_empty

    def judge_text(self, text: str) -> Verdict:
        """Look for the tags."""
        found = [tag for tag in self.preferred_tags if self._is_there(text, tag)]
        missing = [tag for tag in self.preferred_tags if tag not in found]
        right = not missing if self.require_all_tags else bool(found)
        why = f"found {_listed(found)}; missing {_listed(missing)}"
        return Verdict(float(right), why)

    def _is_there(self, text: str, tag: str) -> bool:
        contents = tagged(text, tag, case_sensitive=self.case_sensitive)
        return any(self.allow_empty or content.strip() for content in contents)


def _listed(tags: Sequence[str]) -> str:
    return ", ".join(f"<{tag}>" for tag in tags) or "none"
