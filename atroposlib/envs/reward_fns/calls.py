"""Completions with the keywords that belong to all of them, and those that belong to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import RewardError

OF_EACH: Final = ("solution", "ground_truth", "item", "item_id", "ctx", "token_lengths")
"""Keywords of which a list (but for items, also a tuple) holds one for each completion."""
_KEPT_AS_LISTS: Final = ("solution", "ground_truth", "token_lengths")
_IDS: Final = ("id", "item_id", "task_id")


@dataclass(frozen=True)
class Question:
    """One call of a reward: for some of the completions, by index."""

    reward: RewardFunction
    indices: tuple[int, ...]
    completions: list[Any]
    keywords: dict[str, Any]


@dataclass(frozen=True)
class Calls:
    """What rewards are asked about. Raises: RewardError where a list is not as long as the completions."""

    completions: Sequence[Any]
    keywords: Mapping[str, Any]
    item_ids: tuple[str, ...] = field(init=False)
    """The id of the item of each completion, ``""`` where it has none."""

    def __post_init__(self) -> None:
        for name in self._lists():
            values = self.keywords[name]
            if len(values) != len(self.completions):
                raise RewardError(f"{len(values)} values of {name} for {len(self.completions)} completions")
        object.__setattr__(self, "item_ids", tuple(self._item_id(i) for i in range(len(self.completions))))

    def questions(self, reward: RewardFunction) -> list[Question]:
        """One for each completion where the reward judges each by itself, else one for all."""
        if reward.independent:
            return [self._question(reward, i) for i in range(len(self.completions))]
        everything = tuple(range(len(self.completions)))
        return [Question(reward, everything, [*self.completions], dict(self.keywords))]

    def _question(self, reward: RewardFunction, index: int) -> Question:
        keywords = {**self.keywords, **{name: self._own(name, index) for name in self._lists()}}
        # a right answer may be a list itself, so it always comes in one
        keywords |= {name: [keywords[name]] for name in _KEPT_AS_LISTS if keywords.get(name) is not None}
        return Question(reward, (index,), [self.completions[index]], keywords)

    def _lists(self) -> list[str]:
        return [name for name in OF_EACH if self._holds_one_for_each(name)]

    def _holds_one_for_each(self, name: str) -> bool:
        # an item may be a tuple itself
        return isinstance(self.keywords.get(name), list if name == "item" else (list, tuple))

    def _own(self, name: str, index: int) -> Any:
        value: Any = self.keywords.get(name)
        return value[index] if self._holds_one_for_each(name) else value

    def _item_id(self, index: int) -> str:
        item = self._own("item", index)
        candidates = [self._own("item_id", index)]
        if isinstance(item, Mapping):
            candidates += [item.get(key) for key in _IDS]
        return next((str(each) for each in candidates if each is not None), "")
