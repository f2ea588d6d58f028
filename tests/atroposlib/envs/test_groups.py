"""Members become a group; a failed one is a reason, never a score."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.config import BaseEnvConfig
from atroposlib.envs.groups import (
    Admission,
    Failures,
    as_groups,
    collect_members,
    fewest_members,
    merge_items,
    readable_messages,
)
from atroposlib.errors import ConfigError, EngineRefused, RolloutInvalid


def item(**more: Any) -> Any:
    return {"tokens": [1, 2], "masks": [-100, 2], "scores": 1.0, **more}


def group(scores: list[Any], **more: Any) -> Any:
    return {"tokens": [[1, 2]] * len(scores), "masks": [[-100, 2]] * len(scores), "scores": scores, **more}


# members


async def test_members_run_at_once_and_come_in_their_order():
    started, all_started = [], asyncio.Event()

    async def attempt() -> int:
        number = len(started)
        started.append(number)
        if len(started) == 3:
            all_started.set()
        await all_started.wait()
        return number

    assert await collect_members(attempt, 3, Failures()) == [0, 1, 2]


async def test_a_failed_member_is_tried_twice_more_and_then_left_out():
    outcomes = iter([RolloutInvalid("engine died"), None, "third", ValueError("a"), ValueError("b"), ValueError("c")])

    async def attempt() -> str | None:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    failures = Failures()
    assert await collect_members(attempt, 1, failures) == ["third"]
    assert await collect_members(attempt, 1, failures) == []
    assert failures == {"engine died": 1, "no trajectory": 1, "ValueError": 3}


async def test_failures_that_say_the_same_are_shown_three_times_and_kept_for_the_end(caplog):
    async def attempt() -> str:
        raise EngineRefused("400: no such model")

    failures = Failures()
    assert await collect_members(attempt, 4, failures) == []
    assert failures == {"EngineRefused": 12}
    assert failures.last == "400: no such model"
    assert caplog.text.count("no such model") == 3


@pytest.mark.parametrize(
    ("error", "traced"),
    [(RolloutInvalid("engine_error", "it said 400"), False), (ValueError("of the user"), True)],
)
async def test_only_what_code_of_an_environment_may_have_raised_has_a_traceback(error, traced, caplog):
    async def attempt() -> str:
        raise error

    assert await collect_members(attempt, 1, Failures()) == []
    assert [bool(record.exc_info) for record in caplog.records] == [traced, False, False]


async def test_a_wrong_setting_is_no_failure_but_an_error_and_ends_the_others():
    ended = []

    async def attempt() -> str:
        if not ended:
            ended.append("first")
            raise ConfigError("--env.x is wrong")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")
        return "never"

    with pytest.raises(ConfigError, match=r"--env\.x"):
        await collect_members(attempt, 2, Failures())
    assert ended == ["first", "cancelled"]


async def test_cancelling_a_group_cancels_and_awaits_its_members():
    ended, running = [], asyncio.Event()

    async def attempt() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    task = asyncio.create_task(collect_members(attempt, 3, Failures()))
    await running.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True] * 3


# merging


def test_every_key_of_the_members_is_carried():
    merged = merge_items(
        [
            item(inference_logprobs=[1.0, -1.0], overrides={"a": 1}, mine="x", generation_params={"temperature": 1}),
            item(inference_logprobs=[1.0, -2.0], distill_token_ids=None, group_overrides={"sft": True}),
        ],
        Failures(),
    )
    assert merged["scores"] == [1.0, 1.0]
    assert merged["inference_logprobs"] == [[1.0, -1.0], [1.0, -2.0]]
    assert merged["overrides"] == [{"a": 1}, {}]
    assert merged["generation_params"] == {"temperature": 1}
    assert merged["group_overrides"] == {"sft": True}
    assert merged["distill_token_ids"] is None
    assert merged["mine"] == ["x", None]


def test_a_member_without_logprobs_beside_others_that_have_them_is_left_out():
    failures = Failures()
    merged = merge_items([item(inference_logprobs=[1.0, -1.0], scores=5.0), item()], failures)
    assert merged["scores"] == [5.0]
    assert failures == {"no inference_logprobs, unlike its group": 1}


KEYS = ["advantages", "ref_logprobs", "inference_logprobs", "overrides", "messages", "images", "anything"]


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), st.lists(st.floats(-1, 0), min_size=2, max_size=2)), max_size=5))
def test_all_lists_of_a_merged_group_have_one_entry_per_member(members):
    merged = merge_items([item(**member) for member in members], Failures())
    lengths = {len(value) for value in merged.values() if value is not None}
    assert len(lengths) <= 1


# admission


def refusal(value: Any, *, longest: int = -1, sending: bool = True, **config: Any) -> str | None:
    return Admission(BaseEnvConfig(**config), longest, sending).refusal(value)


@pytest.mark.parametrize(
    ("value", "config", "reason"),
    [
        (group([0.0, 1.0]), {}, None),
        (group([1.0]), {"group_size": 1}, None),
        (group([1.0]), {"group_size": 4}, "too few members"),
        (group([1.0, 1.0]), {}, "all scores are the same"),
        (group([1.0, 1.0]), {"ensure_scores_are_not_same": False}, None),
        (group([0.0, float("nan")]), {}, "a score is no finite number"),
        (group([0.0, None]), {}, "a score is no finite number"),
        (group([0.0, "1"]), {}, "a score is no finite number"),
        (group([0.0, 1.0], inference_logprobs=[[1.0, -1.0]]), {}, "malformed inference_logprobs"),
        (group([0.0, 1.0], tokens=[[1], [1, 2]]), {}, "malformed masks"),
        ({"scores": [0.0, 1.0]}, {}, "malformed tokens"),
        (group([0.0, 1.0], group_overrides=None), {}, None),
    ],
)
def test_what_must_not_be_trained_on_is_held_back_with_a_reason(value, config, reason):
    assert refusal(value, **config) == reason


def test_a_sequence_may_be_as_long_as_the_limit_but_not_longer():
    assert refusal(group([0.0, 1.0]), longest=2) is None
    assert refusal(group([0.0, 1.0]), longest=1) == "longer than 1 tokens"
    assert refusal(group([0.0, 1.0]), longest=0) is None


def test_a_group_without_tokens_may_be_recorded_but_not_sent():
    value = {"scores": [0.0, 1.0], "messages": [[], []]}
    assert refusal(value, sending=False) is None
    assert refusal(value, sending=True) is not None


def test_numpy_scores_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert refusal(group([numpy.float32(0), numpy.float32(1)])) is None
    assert refusal(group([numpy.float32("nan"), numpy.float32(1)])) is not None


def test_whatever_a_collector_returns_is_read_as_groups():
    one = group([0.0, 1.0])
    assert as_groups(None) == []
    assert as_groups(one) == [one]
    assert as_groups([one, None, one]) == [one, one]
    assert as_groups([]) == []


def test_a_single_member_is_a_group_only_where_one_was_asked_for():
    assert [fewest_members(size) for size in (1, 2, 8)] == [1, 2, 2]


def test_tokens_become_messages_by_what_was_trained_on():
    messages = readable_messages([1, 2, 3, 4], [-100, -100, 3, -100], lambda ids: " ".join(map(str, ids)))
    assert messages == [
        {"role": "user", "content": "1 2"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "4"},
    ]
