"""From single rollouts to a group: members are collected, failures counted, and what must not be sent is held back.

A failed member is a reason, never a score. It is tried again, then left out; a group of fewer than two is no group.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar, cast

from atroposlib.envs.config import BaseEnvConfig
from atroposlib.errors import ConfigError, GroupRefused, InferenceError, RolloutInvalid
from atroposlib.wire import IGNORED_MASK, ScoredDataGroup, ScoredDataItem, check_group

logger = logging.getLogger(__name__)
T = TypeVar("T")

MEMBER_RETRIES: Final = 2
_SHOWN_CHARS: Final = 300
_SHOWN_REPEATS: Final = 3
GROUP_KEYS_OF_AN_ITEM: Final = ("generation_params", "group_overrides", "env_id", "group_id")
"""Keys of a ``ScoredDataItem`` that speak of its whole group."""
ALIGNED_KEYS: Final = ("advantages", "ref_logprobs", "inference_logprobs", "distill_token_ids", "distill_logprobs")
"""Keys of a ``ScoredDataItem`` with one entry per token."""
_ABSENT: Final[Mapping[str, Any]] = {"overrides": {}, "messages": []}


class Failures(Counter[str]):
    """How many failed for which reason. ``last`` is what the last one said that said anything.

    ``whole`` are those that these are a part of, and that keep what these said.
    """

    last: str = ""
    whole: Failures | None = None

    def part(self) -> Failures:
        """Counts for something of its own, such as one item; what they count is counted here, too."""
        part = Failures()
        part.whole = self
        return part


def failure_reason(error: BaseException) -> str:
    """The short word that a failure is counted under."""
    return error.reason if isinstance(error, RolloutInvalid) else type(error).__name__


def count_failure(failures: Failures, reason: str, error: BaseException | None = None, what: str = "rollout") -> None:
    """Count and log a failure in one line, with its traceback the first time that this reason is seen.

    Where an engine failed, or a rollout was found invalid, no code of an environment did, and there is none. Of those
    that say the same one after the other the first are shown, and the others at the level of debugging.
    """
    failures[reason] += 1
    if failures.whole is not None:
        count_failure(failures.whole, reason, error, what)
        return
    said = in_one_line(_without_reason(error, reason)) if error is not None else ""
    level = logging.DEBUG if said and said == failures.last and failures[reason] > _SHOWN_REPEATS else logging.WARNING
    failures.last = said or failures.last
    ours = isinstance(error, InferenceError) or (isinstance(error, RolloutInvalid) and error.__cause__ is None)
    traced = failures[reason] == 1 and not ours
    detail = f": {said}" if said else ""
    logger.log(level, "a %s failed (%s)%s", what, reason, detail, exc_info=error if traced else None)


def _without_reason(error: BaseException, reason: str) -> str:
    """What an error says, less the reason that it is logged under anyway."""
    return error.detail if isinstance(error, RolloutInvalid) and error.reason == reason else str(error)


def told(reasons: Counter[str], last: str) -> str:
    """Why something was left out and how often, in one line, with what the last failure said."""
    counts = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common()) or "no reason was given"
    return f"{counts}; the last said: {last}" if last else counts


def in_one_line(said: str) -> str:
    """What an error says, on one line; an engine may quote a whole page of HTML."""
    text = " ".join(said.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


async def collect_members(
    attempt: Callable[[], Awaitable[T | None]],
    count: int,
    failures: Failures,
    retries: int = MEMBER_RETRIES,
) -> list[T]:
    """Run ``attempt`` for each of ``count`` members, at once, and return what succeeded, in the order of members.

    An attempt fails by raising or by ``None``; it is repeated up to ``retries`` times. ``failures`` counts reasons.
    Cancelling cancels all members and waits for them. Raises: ConfigError, which no retry can help.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_member(attempt, failures, retries)) for _ in range(count)]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    results = (task.result() for task in tasks)
    return [result for result in results if result is not None]


def both(answer: tuple[T, list[Any]], method: str) -> tuple[T, list[Any]]:
    """What was collected, and items for later. Raises: TypeError where a method forgot one of the two."""
    if isinstance(answer, tuple | list) and len(answer) == 2:
        return answer[0], answer[1]
    raise TypeError(f"{method}() gave {type(answer).__name__}; it must return two things, as in `return collected, []`")


async def _member(attempt: Callable[[], Awaitable[T | None]], failures: Failures, retries: int) -> T | None:
    for _ in range(1 + retries):
        try:
            result = await attempt()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of one rollout; logged and counted)
            count_failure(failures, failure_reason(error), error)
        else:
            if result is not None:
                return result
            count_failure(failures, "no trajectory")
    return None


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first single error inside a group; a ConfigError goes before others."""
    leaves = list(_leaves(errors))
    return next((leaf for leaf in leaves if isinstance(leaf, ConfigError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def fewest_members(group_size: int) -> int:
    """How few sequences are still a group: a single one has nothing to be compared with."""
    return min(2, group_size)


def merge_items(items: Sequence[ScoredDataItem], failures: Failures) -> ScoredDataGroup:
    """One group from its members, with every key that they carry, unknown ones too.

    Where only some members carry a key with one entry per token, those without it are left out and counted: they
    could not be trained on beside the others.
    """
    aligned = [key for key in ALIGNED_KEYS if any(item.get(key) is not None for item in items)]
    complete = [item for item in items if all(item.get(key) is not None for key in aligned)]
    for item in items:
        for key in aligned:
            if item.get(key) is None:
                count_failure(failures, f"no {key}, unlike its group")
    keys = dict.fromkeys(key for item in complete for key in item)
    merged: dict[str, Any] = {}
    for key in keys:
        values = [cast("Mapping[str, Any]", item).get(key) for item in complete]
        given = [value for value in values if value is not None]
        if not given:
            merged[key] = None
        elif key in GROUP_KEYS_OF_AN_ITEM:
            merged[key] = given[0]
        else:
            merged[key] = [_ABSENT.get(key) if value is None else value for value in values]
    return cast("ScoredDataGroup", merged)


@dataclass(frozen=True)
class Admission:
    """What a group must be to be sent, or only recorded (``sending`` false)."""

    config: BaseEnvConfig
    longest: int
    """Most tokens of a sequence; 0 or less: no limit."""
    sending: bool

    def refusal(self, group: ScoredDataGroup) -> str | None:
        """Why this group is held back, in few words to count it under; ``None`` if it is welcome."""
        scores = group.get("scores") or []
        if len(scores) < fewest_members(self.config.group_size):
            return "too few members"
        if not all(isinstance(score, (int, float)) and math.isfinite(score) for score in map(_plain_number, scores)):
            return "a score is no finite number"
        if self.config.ensure_scores_are_not_same and len(scores) > 1 and len(set(scores)) == 1:
            return "all scores are the same"
        if self.sending and any((one or {}).get("trainable") is False for one in group.get("overrides") or ()):
            return "not trainable"
        if self.longest > 0 and any(len(tokens) > self.longest for tokens in group.get("tokens") or ()):
            return f"longer than {self.longest} tokens"
        if self.sending or group.get("tokens"):
            return _misaligned(group)
        return None


def _plain_number(score: Any) -> Any:
    """A numpy or torch scalar as a number."""
    return score.item() if hasattr(score, "item") else score


def _misaligned(group: ScoredDataGroup) -> str | None:
    try:
        check_group(group)
    except GroupRefused as error:
        logger.error("a group is malformed: %s", error)  # noqa: TRY400
        return f"malformed {error.field}".strip()
    return None


def as_groups(collected: object) -> list[ScoredDataGroup]:
    """What ``collect_trajectories`` may return (a group, a list of groups and ``None``, or ``None``) as a list."""
    if collected is None:
        return []
    members = collected if isinstance(collected, (list, tuple)) else [collected]
    return [cast("ScoredDataGroup", member) for member in members if member]


def readable_messages(tokens: Sequence[int], masks: Sequence[int], decode: Callable[[list[int]], str]) -> list[Any]:
    """Chat messages for a sequence that has none: what was trained on is the assistant's, the rest the user's."""
    spans = groupby(zip(tokens, masks, strict=True), key=lambda pair: pair[1] != IGNORED_MASK)
    return [
        {"role": "assistant" if trained else "user", "content": decode([token for token, _ in span])}
        for trained, span in spans
    ]
