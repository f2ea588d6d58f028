"""Scoring off the event loop: what is judged, what is not, and why."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.envs.reward_fns import RewardFunction, registry
from atroposlib.envs.reward_fns.scoring import Part, Scores, rewards_as_one, score
from atroposlib.envs.reward_fns.workers.pool import WorkerPool
from atroposlib.errors import ConfigError, RewardError
from tests.atroposlib.envs.reward_fns.doubles import (
    GivenReward,
    ObeyingReward,
    TogetherReward,
    UnderstandingReward,
    WaitingReward,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(workers=2)
    yield made
    made.close()


async def judge(text: str) -> float:
    return float(len(text))


async def test_a_list_of_rewards_is_their_weighted_mean(pool):
    rewards = [{"type": "accuracy", "weight": 3.0}, {"type": "format", "weight": 1.0}]
    scores = await score(rewards, ["<think>x</think>5", "5", "6"], solution="5", pool=pool)
    assert scores.rewards == [1.0, 0.75, 0.0]
    assert [(part.name, part.weight, part.value) for part in scores[1].parts] == [
        ("accuracy", 3.0, 1.0),
        ("format", 1.0, 0.0),
    ]


async def test_each_part_says_what_was_read_from_the_answer_and_from_the_truth(pool):
    [scored] = await score("accuracy", [r"thus \boxed{\frac{1}{2}}"], solution="#### 0.5", pool=pool)
    assert scored.parts[0].why == r"“\frac{1}{2}” (in the last \boxed{}) = “0.5” (truth)"
    assert scored.parts[0].seconds > 0


async def test_parts_of_parts_are_kept(pool):
    config = {"type": "combined", "rewards": ["format", "cascading_r1_math"], "name": "all"}
    [scored] = await score(config, [r"<think>2 < 3</think>\boxed{5}"], solution="5", pool=pool)
    assert scored.reward == 2.5
    [whole] = scored.parts
    assert (whole.name, [part.name for part in whole.parts]) == ("all", ["format", "cascading_r1_math"])
    assert [part.name for part in whole.parts[1].parts] == ["accuracy", "thoughts_first"]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("hang", "took longer than 1 s"),
        ("hang in C", "took longer than 1 s"),
        ("sleep", "took longer than 1 s"),
        ("die", "ended its process by SIGKILL"),
        ("exit", "ended its process with exit code 3"),
        ("raise", "ValueError: what is this?"),
        ("eat", "more memory"),
    ],
)
async def test_one_item_that_cannot_be_judged_is_named_and_the_others_are_judged(pool, order, reason):
    items = [{"id": f"q{i}"} for i in range(4)]
    scores = await score(ObeyingReward(name="obeying"), ["a", order, "ccc", "dddd"], item=items, pool=pool)
    assert [each.reward for each in scores] == [1.0, None, 3.0, 4.0]
    assert list(scores.failures) == [1]
    error = scores.failures[1]
    assert (error.reward, error.item_id) == ("obeying", "q1")
    assert str(error).startswith("obeying, item q1, completion 1: ")
    assert reason in str(error)
    with pytest.raises(RewardError, match="item q1"):
        _ = scores.rewards


async def test_the_reward_that_fails_is_named_among_others(pool):
    scores = await score(["length", ObeyingReward(), "format"], ["raise"], config={"max_tokens": 10}, pool=pool)
    assert str(scores.failures[0]) == "obeying, completion 0: ValueError: what is this?"
    assert scores[0].parts == ()


async def test_rewards_of_worker_processes_do_not_compute_in_this_one(pool):
    scores = await score(ObeyingReward(), ["pid"] * 8, pool=pool)
    assert {int(reward) for reward in scores.rewards} <= {*pool.pids()}


async def test_other_rewards_compute_in_a_thread(pool):
    class WhereReward(RewardFunction):
        def compute(self, completions: Any, **_: Any) -> list[float]:
            return [float(threading.get_ident())] * len(completions)

    assert (await score(WhereReward(), ["a"], pool=pool)).rewards != [float(threading.get_ident())]


async def test_the_event_loop_goes_on_meanwhile(pool):
    class SleepingReward(RewardFunction):
        def compute(self, completions: Any, **_: Any) -> list[float]:
            time.sleep(0.3)
            return [1.0] * len(completions)

    scoring = asyncio.create_task(score([SleepingReward(), ObeyingReward()], ["a"], pool=pool))
    turns = 0
    while not scoring.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10


async def test_rewards_that_wait_are_awaited_at_once_but_bounded(pool):
    under_way = most = 0

    async def slow_judge(text: str) -> float:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return 1.0

    class EachReward(WaitingReward):
        independent = True

    scores = await score(EachReward(), ["a"] * 20, judge=slow_judge, max_waiting=5, pool=pool)
    assert scores.rewards == [1.0] * 20
    assert most == 5


async def test_a_reward_that_waits_fails_its_completion_only_where_each_is_judged_by_itself(pool):
    async def picky(text: str) -> float:
        if text == "bad":
            raise ValueError("no")
        return 1.0

    class EachReward(WaitingReward):
        independent = True

    scores = await score(EachReward(), ["a", "bad"], judge=picky, pool=pool)
    assert [each.reward for each in scores] == [1.0, None]
    together = await score(WaitingReward(), ["a", "bad"], judge=picky, pool=pool)
    assert [each.reward for each in together] == [None, None]
    assert "ValueError: no" in str(together.failures[0])


async def test_rewards_that_compare_completions_get_them_together(pool):
    assert (await score(TogetherReward(), ["a", "bb", "c"], pool=pool)).rewards == [0.0, 1.0, 0.0]


async def test_minmax_ranges_over_the_completions_that_could_be_judged(pool):
    config = {"type": "combined", "normalization": "minmax", "rewards": [ObeyingReward()]}
    scores = await score(config, ["a", "raise", "ccc", "bb"], pool=pool)
    assert [each.reward for each in scores] == [0.0, None, 1.0, 0.5]


async def test_lists_hold_one_value_for_each_completion(pool):
    scores = await score("exact_match", ["5", "b"], solution=["5", ["a", "b"]], pool=pool)
    assert scores.rewards == [1.0, 1.0]
    assert (await score("length", ["5", "b"], token_lengths=(5, 10), config={"max_tokens": 10}, pool=pool)).rewards == [
        1,
        0,
    ]
    assert (await score("exact_match", ["5"], solution="5", item=("a", "tuple"), pool=pool)).rewards == [1.0]
    boxes = [SimpleNamespace(value=1.0), SimpleNamespace(value=2.0)]

    class BoxReward(RewardFunction):
        independent = True

        def compute(self, completions: Any, ctx: Any = None, **_: Any) -> list[float]:
            return [ctx.value]

    assert (await score(BoxReward(), ["a", "b"], ctx=boxes, pool=pool)).rewards == [1.0, 2.0]
    with pytest.raises(RewardError, match="1 values of solution for 2 completions"):
        await score("exact_match", ["5", "b"], solution=["5"], pool=pool)


async def test_what_cannot_travel_stays_here(pool):
    scores = await score(
        UnderstandingReward(),
        ["a"],
        solution="s",
        item={"id": 1},
        ctx=lambda: 0,
        judge=lambda: 0,
        threshold=0.5,
        pool=pool,
    )
    assert scores.rewards == [2.5]


async def test_an_item_that_cannot_travel_is_an_error_and_no_score(pool):
    scores = await score(UnderstandingReward(), ["a"], item={"id": 1, "lock": threading.Lock()}, pool=pool)
    assert "cannot be sent to another process" in str(scores.failures[0])
    assert (await score("accuracy", ["5"], solution="5", item=threading.Lock(), pool=pool)).rewards == [1.0]


async def test_a_reward_that_cannot_be_made_again_elsewhere_says_so(pool):
    class LocalReward(ObeyingReward):
        pass

    scores = await score(LocalReward(), ["a"], pool=pool)
    assert "define it in a module" in str(scores.failures[0])


async def test_a_metrics_logger_hears_of_every_part(pool):
    reported: list[dict[str, float]] = []
    rewards = rewards_as_one([GivenReward([1.0, 0.0], name="mine"), ObeyingReward(name="other")])
    rewards.set_wandb_logger(SimpleNamespace(log=reported.append))
    await score(rewards, ["a", "bbb"], pool=pool)
    means = {key: value for metrics in reported for key, value in metrics.items() if key.endswith("mean_raw")}
    assert means == {
        "reward/mine/mean_raw": 0.5,
        "reward/other/mean_raw": 2.0,
        "reward/combined(mine,other)/mean_raw": 1.25,
    }


async def test_means_are_those_of_the_completions_that_were_judged(pool):
    scores = await score([ObeyingReward(), "format"], ["a", "raise", "<think></think>"], pool=pool)
    assert scores.means() == {"reward": pytest.approx(4.25), "reward/obeying": 8.0, "reward/format": 0.5}


async def test_nothing_to_score_is_no_error(pool):
    scores = await score(["accuracy", "format"], [], solution="5", pool=pool)
    assert (scores.rewards, len(scores), scores.means()) == ([], 0, {})


def test_wrong_rewards_are_errors_of_configuration():
    with pytest.raises(ConfigError):
        rewards_as_one(["no_such_reward"])
    with pytest.raises(ConfigError):
        rewards_as_one([])


def test_made_rewards_are_not_made_again():
    made = rewards_as_one(["format", "length"])
    assert rewards_as_one(made) is made


async def test_scoring_that_is_cancelled_leaves_the_workers_usable(pool):
    scoring = asyncio.create_task(score(ObeyingReward(), ["sleep"] * 50, pool=pool))
    await asyncio.sleep(0.05)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    async with asyncio.timeout(30):
        assert (await score(ObeyingReward(), ["a"], pool=pool)).rewards == [1.0]


def test_a_reward_of_the_program_itself_is_found_by_its_workers(tmp_path: Path):
    program = tmp_path / "my_env.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio, os
            from atroposlib.envs.reward_fns import RewardFunction, registry
            from atroposlib.envs.reward_fns.scoring import score

            @registry.register
            class OwnReward(RewardFunction):
                cpu_bound = True

                def __init__(self, factor=1.0, **kwargs):
                    super().__init__(**kwargs)
                    self.factor = factor

                def compute(self, completions, **kwargs):
                    return [self.factor * (os.getpid() != kwargs["item"]) for _ in completions]

            if __name__ == "__main__":
                print(asyncio.run(score({"type": "own", "factor": 2.0}, ["a"], item=os.getpid())).rewards)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, env=environment, timeout=100
    )
    assert (said.stdout, said.stderr) == ("[2.0]\n", "")


def test_a_reward_of_a_program_that_is_run_as_a_module_is_found_by_its_workers(tmp_path: Path):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "factor.py").write_text("FACTOR = 3.0\n")
    (package / "program.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            from atroposlib.envs.reward_fns import RewardFunction
            from atroposlib.envs.reward_fns.scoring import score
            from .factor import FACTOR

            class OwnReward(RewardFunction):
                cpu_bound = True

                def compute(self, completions, **kwargs):
                    return [FACTOR for _ in completions]

            if __name__ == "__main__":
                print(asyncio.run(score(OwnReward(), ["a"])).rewards)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))}
    said = subprocess.run(
        [sys.executable, "-m", "my_package.program"],
        capture_output=True, text=True, check=False, env=environment, timeout=100,
    )  # fmt: skip
    assert (said.stdout, said.stderr) == ("[3.0]\n", "")


def test_scores_are_a_sequence():
    scores = Scores(())
    assert scores[:1] == scores
    assert Part("a", 1.0, 0.5).parts == ()


async def test_every_call_of_rewards_by_hand_agrees_with_scoring(pool):
    texts = [r"\boxed{5}", "6", r"\boxed{\sqrt{25}}"]
    reward = registry.create(["accuracy", "reasoning_steps"])
    assert reward(texts, solution="5") == (await score(reward, texts, solution="5", pool=pool)).rewards
