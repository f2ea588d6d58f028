"""Whether a completion has the tags it was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction


@registry.register
class FormatReward(RewardFunction):
    """1 where a pair of one of the ``preferred_tags`` (of each, with ``require_all_tags``) is there, else 0."""

    def __init__(
        self,
        preferred_tags: Sequence[str] | None = None,
        require_all_tags: bool = False,
        case_sensitive: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.preferred_tags = list(preferred_tags or ("think", "answer"))
        self.require_all_tags = require_all_tags
        self.case_sensitive = case_sensitive
        flags = re.DOTALL | (0 if case_sensitive else re.IGNORECASE)
        self._pairs = [re.compile(rf"<{tag}>.*?</{tag}>", flags) for tag in map(re.escape, self.preferred_tags)]

    def compute(self, completions: Sequence[Any], **_: Any) -> list[float]:
        """Look at the text of each completion."""
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        found = [pair.search(text) is not None for pair in self._pairs]
        return float(all(found) if self.require_all_tags else any(found))
