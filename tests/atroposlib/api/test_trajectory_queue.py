"""The queue as a class: order, leases, runs, bounds, shares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.api.trajectory_queue import TrajectoryQueue
from atroposlib.api.waiting_groups import QueueLimits
from atroposlib.errors import GroupRefused, QueueFull, TrainerNotRegistered, UnknownEnvironment
from atroposlib.wire import EnvIdentifier
from tests.atroposlib.api.groups import env_registration, firsts, incoming, registration


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> TrajectoryQueue:
    """A queue whose trainer takes four sequences at a time and has asked once."""
    queue = TrajectoryQueue(clock=clock)
    queue.register(registration())
    assert queue.next_batch() is None
    return queue


def deliver(queue: TrajectoryQueue, acknowledged: int | None = None) -> list[int]:
    """Take a batch whose answer arrives; the first tokens of its groups."""
    batch = queue.next_batch(acknowledged)
    assert batch is not None
    queue.batch_sent(batch.batch_id)
    return firsts(batch.groups)


def register_env(queue: TrajectoryQueue, **changes: Any) -> int:
    answer = queue.register_env(env_registration(**changes))
    assert answer["status"] == "success"
    return answer["env_id"]


# --- order and steps ---


def test_batches_come_in_order_of_arrival_and_each_counts_one_step(queue):
    queue.add([incoming(i) for i in range(6)])
    assert [deliver(queue), deliver(queue)] == [[0, 1], [2, 3]]
    assert queue.status()["current_step"] == 2
    assert queue.status()["queue_size"] == 2


def test_groups_of_mixed_sizes_make_exact_batches(queue):
    queue.add([incoming(0, 3), incoming(1, 3), incoming(2, 2), incoming(3, 1)])
    assert deliver(queue) == [0, 3]
    assert queue.next_batch() is None
    assert "no sum is the batch_size 4" in queue.status()["stalled"]
    queue.add([incoming(4, 1)])
    assert deliver(queue) == [1, 4]
    assert queue.status()["stalled"] is None


def test_strict_order_is_kept_where_the_trainer_asks_for_it():
    queue = TrajectoryQueue()
    queue.register(registration(batching="fifo"))
    queue.add([incoming(0, 3), incoming(1, 3), incoming(2, 1)])
    assert [deliver(queue), deliver(queue)] == [[0], [1, 2]]


def test_a_group_larger_than_the_batch_is_refused_with_the_reason(queue):
    with pytest.raises(GroupRefused, match="5 sequences in one group, but a batch holds 4"):
        queue.add([incoming(0, 5)])
    assert queue.status()["groups_refused"] == {"malformed_or_too_large": 1}


def test_groups_posted_before_the_trainer_registers_are_kept():
    queue = TrajectoryQueue()
    queue.add([incoming(0), incoming(1), incoming(2, 9)])
    with pytest.raises(TrainerNotRegistered):
        queue.next_batch()
    queue.register(registration())
    assert deliver(queue) == [0, 1]
    assert queue.status()["groups_dropped"] == {"larger_than_batch": 1}


def test_a_list_is_queued_whole_or_not_at_all(queue):
    with pytest.raises(GroupRefused):
        queue.add([incoming(0), incoming(1, 5)])
    assert queue.status()["queue_size"] == 0


# --- leases ---


def test_a_batch_stays_in_flight_until_the_next_is_asked_for(queue):
    queue.add([incoming(i) for i in range(4)])
    deliver(queue)
    assert queue.status()["batches_in_flight"] == 1
    deliver(queue)
    assert queue.next_batch() is None
    assert queue.status()["batches_in_flight"] == 0


def test_a_batch_whose_answer_was_lost_comes_again(queue):
    queue.add([incoming(i) for i in range(4)])
    lost = queue.next_batch()
    queue.batch_lost(lost.batch_id)
    assert queue.status()["current_step"] == 0
    assert deliver(queue) == [0, 1]
    assert queue.status()["current_step"] == 1


def test_a_batch_that_is_still_being_sent_is_not_given_to_another(queue):
    queue.add([incoming(i) for i in range(4)])
    first = queue.next_batch()
    assert deliver(queue) == [2, 3]
    queue.batch_sent(first.batch_id)
    assert queue.next_batch() is None
    assert queue.status()["batches_in_flight"] == 0


def test_an_explicit_acknowledgement_brings_back_what_it_does_not_name(queue):
    queue.add([incoming(i) for i in range(4)])
    first = queue.next_batch(0)
    queue.batch_sent(first.batch_id)
    again = queue.next_batch(0)
    assert firsts(again.groups) == firsts(first.groups) == [0, 1]
    assert deliver(queue, again.batch_id) == [2, 3]


def test_a_trainer_that_registers_again_gets_the_batch_in_flight_again(queue):
    queue.add([incoming(i) for i in range(4)])
    deliver(queue)
    deliver(queue)
    queue.register(registration(starting_step=1))
    assert queue.status()["current_step"] == 1
    assert deliver(queue) == [2, 3]
    assert queue.status()["current_step"] == 2


# --- runs ---


def test_another_run_starts_empty_and_environments_must_register_again(queue):
    env_id = register_env(queue)
    queue.add([incoming(0, env_id=env_id)])
    old_run = queue.status()["run_id"]
    queue.register(registration(wandb_group="another", starting_step=7))
    status = queue.status()
    assert (status["queue_size"], status["current_step"]) == (0, 7)
    assert status["groups_dropped"] == {"new_run": 1}
    with pytest.raises(UnknownEnvironment, match="register-env again"):
        queue.env_status(EnvIdentifier(env_id=env_id, run_id=old_run))
    assert queue.register_env(env_registration()) == {"status": "wait for trainer to start"}


def test_a_reset_forgets_the_run(queue):
    queue.add([incoming(0), incoming(1)])
    deliver(queue)
    queue.reset()
    assert queue.info() == {"batch_size": -1, "max_token_len": -1}
    assert queue.wandb_info() == {"group": None, "project": None}
    assert queue.latest_example() is None
    with pytest.raises(TrainerNotRegistered):
        queue.next_batch()


def test_environments_wait_until_the_trainer_asks_for_a_batch():
    queue = TrajectoryQueue()
    queue.register(registration(starting_step=3))
    assert queue.register_env(env_registration()) == {"status": "wait for trainer to start"}
    queue.next_batch()
    answer = queue.register_env(env_registration())
    assert {key: answer[key] for key in answer if key != "run_id"} == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "env_0",
        "checkpoint_dir": "/checkpoints",
        "starting_step": 3,
        "checkpoint_interval": 10,
        "num_steps": 100,
    }
    assert queue.register_env(env_registration())["wandb_name"] == "env_1"


@pytest.mark.parametrize("env_id", [-1, 1, 10**12])
def test_unknown_environments_are_told_to_register_again(queue, env_id):
    register_env(queue)
    with pytest.raises(UnknownEnvironment):
        queue.add([incoming(0, env_id=env_id)])
    with pytest.raises(UnknownEnvironment):
        queue.env_status(EnvIdentifier(env_id=env_id))
    assert queue.disconnect_env(EnvIdentifier(env_id=env_id))["status"] == "failure"
    assert queue.status()["groups_refused"] == {"unknown_env": 1}


# --- repeated posts and bounds ---


def test_a_group_posted_twice_under_one_id_is_queued_once(queue):
    for _ in range(3):
        queue.add([incoming(0, group_id="a")])
    queue.add([incoming(1, group_id="b"), incoming(1, group_id="b")])
    status = queue.status()
    assert (status["queue_size"], status["groups_received"], status["groups_repeated"]) == (2, 5, 3)


def test_an_id_is_remembered_after_its_group_was_delivered(queue):
    queue.add([incoming(0, group_id="a"), incoming(1, group_id="b")])
    deliver(queue)
    queue.add([incoming(0, group_id="a")])
    assert queue.status()["queue_size"] == 0


def test_only_so_many_ids_are_remembered():
    queue = TrajectoryQueue(limits=QueueLimits(group_ids=2))
    for name in ("a", "b", "c", "a"):
        queue.add([incoming(0, group_id=name)])
    assert queue.status()["queue_size"] == 4


@pytest.mark.parametrize("limits", [QueueLimits(groups=2), QueueLimits(bytes=2 * len(incoming().body))])
def test_a_full_queue_refuses_until_the_trainer_takes_some(limits):
    queue = TrajectoryQueue(limits=limits)
    queue.register(registration())
    queue.add([incoming(0), incoming(1)])
    with pytest.raises(QueueFull) as refused:
        queue.add([incoming(2)])
    assert refused.value.retry_after_s > 0
    deliver(queue)
    queue.add([incoming(2)])
    assert queue.status()["groups_refused"] == {"queue_full": 1}


def test_a_full_queue_lets_in_the_environment_whose_share_the_batch_needs():
    queue = TrajectoryQueue(limits=QueueLimits(groups=4))
    queue.register(registration())
    queue.next_batch()
    busy, rare = register_env(queue), register_env(queue, min_batch_allocation=0.5)
    queue.add([incoming(i, env_id=busy) for i in range(4)])
    assert queue.next_batch() is None
    assert f"waiting for groups of the environments [{rare}]" in queue.status()["stalled"]
    with pytest.raises(QueueFull, match="min_batch_allocation"):
        queue.add([incoming(9, env_id=busy)])
    queue.add([incoming(5, env_id=rare)])
    assert deliver(queue) == [0, 5]


def test_what_no_limit_would_ever_let_in_is_refused_for_good():
    queue = TrajectoryQueue(limits=QueueLimits(groups=1))
    with pytest.raises(GroupRefused, match="more than this server ever holds"):
        queue.add([incoming(0), incoming(1)])


# --- shares, weights, life and death ---


def test_a_dead_environment_with_a_share_blocks_nobody(queue, clock):
    living, dead = register_env(queue), register_env(queue, min_batch_allocation=0.5)
    queue.add([incoming(i, env_id=living) for i in range(2)])
    assert queue.next_batch() is None
    clock.now += 61
    queue.env_status(EnvIdentifier(env_id=living))
    assert deliver(queue) == [0, 1]
    assert queue.status()["connected_envs"] == 1
    queue.env_status(EnvIdentifier(env_id=dead))
    assert queue.status()["connected_envs"] == 2


def test_a_disconnected_environment_keeps_no_share(queue):
    env_id = register_env(queue, min_batch_allocation=0.5)
    queue.add([incoming(0), incoming(1)])
    assert queue.next_batch() is None
    assert queue.disconnect_env(EnvIdentifier(env_id=env_id)) == {"status": "success"}
    assert deliver(queue) == [0, 1]


def env_status(queue: TrajectoryQueue, env_id: int) -> dict[str, Any]:
    return dict(queue.env_status(EnvIdentifier(env_id=env_id)))


def test_weights_are_parts_of_weight_times_context_length(queue):
    small, large = register_env(queue), register_env(queue, max_token_length=1536)
    faint = register_env(queue, weight=0.0)
    assert env_status(queue, small)["env_weight"] == pytest.approx(0.25)
    assert env_status(queue, large)["env_weight"] == pytest.approx(0.75)
    assert env_status(queue, faint)["env_weight"] == 0.01


@pytest.mark.parametrize("weight", [-1.0, 0.0])
def test_weights_that_sum_to_nothing_are_no_error(queue, weight):
    assert env_status(queue, register_env(queue, weight=weight))["env_weight"] == 1.0


def test_status_of_an_environment_counts_in_groups_of_its_own(queue):
    mine = register_env(queue, group_size=2)
    other = register_env(queue, group_size=4, min_batch_allocation=0.25)
    queue.add([incoming(i, 2, env_id=mine) for i in range(3)] + [incoming(9, 4, env_id=other)])
    status = env_status(queue, mine)
    # 6 sequences of its own; 4 of the other, of which 1 in 4 is kept for it
    assert (status["self_queue_size"], status["queue_size"], status["max_group_size"]) == (3, 4, 4)
    assert status["unallocated_fraction"] == pytest.approx(0.75)


def test_status_costs_no_scan_of_the_queue(queue):
    register_env(queue)
    calls = _steps_of(lambda: queue.status(), queue, groups=10), _steps_of(lambda: queue.status(), queue, groups=1000)
    assert calls[0] == calls[1]
    calls = _steps_of(lambda: env_status(queue, 0), queue, 10), _steps_of(lambda: env_status(queue, 0), queue, 1000)
    assert calls[0] == calls[1]


def _steps_of(call: Callable[[], Any], queue: TrajectoryQueue, groups: int) -> int:
    """How many lines of Python ``call`` runs with so many more groups waiting."""
    queue.add([incoming(0)] * groups)
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines
