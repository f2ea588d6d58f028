"""Evaluations of tool-using agents: their items, what is left of one that was killed, those written by hand."""

import asyncio
import json

import pytest

from atroposlib.envs.offline import NothingCollected
from environments.tool_context import ToolContext
from tests.environments.scripted_env import SOLVE, CountingEnv, by_turn, make

pytestmark = pytest.mark.usefixtures("no_box_is_left")


def folder_settings(tmp_path):
    return {"data_dir_to_save_evals": str(tmp_path)}


def samples_in(tmp_path):
    return [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]


async def evaluate(env):
    async with asyncio.timeout(60):
        await env.evaluate_manager()
    await env.aclose()


async def test_the_default_evaluation_plays_the_held_out_items_in_order(tmp_path):
    env = make(by_turn(SOLVE[0]), **folder_settings(tmp_path), eval_size=5, max_eval_workers=3)
    await evaluate(env)
    samples = samples_in(tmp_path)
    assert [sample["prompt"] for sample in samples] == [f"Write word{n} into answer.txt" for n in range(5)]
    assert [sample["reward"] for sample in samples] == [1.0] * 5
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert (metrics["eval/mean_reward"], metrics["eval/num_samples"], metrics["eval/num_invalid"]) == (1.0, 5, 0)
    assert {request.arguments["temperature"] for request in env.engine.requests} == {0.0}
    assert env._reward_buffer == []
    assert not (tmp_path / "samples.partial.jsonl").exists()


async def test_an_item_that_cannot_be_evaluated_is_counted_and_not_scored(tmp_path):
    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            if item["word"] == "word1":
                raise OSError("no")
            return 0.5

    await evaluate(make(by_turn(SOLVE[0]), cls=Env, **folder_settings(tmp_path), eval_size=3))
    assert [sample["reward"] for sample in samples_in(tmp_path)] == [0.5, None, 0.5]
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert (metrics["eval/mean_reward"], metrics["eval/num_invalid"]) == (0.5, 1)


class Failing(CountingEnv):
    """Of most items no rollout can be judged."""

    judged = ("word0",)

    async def compute_reward(self, item, result, ctx):
        if item["word"] not in self.judged:
            raise OSError("the judge is gone")
        return 1.0


async def test_what_fails_at_every_item_is_shown_three_times_and_told_at_the_end(tmp_path, caplog):
    await evaluate(make(by_turn(SOLVE[0]), cls=Failing, **folder_settings(tmp_path), eval_size=4))
    assert caplog.text.count("a rollout failed (reward_error)") == 3
    assert "3 of 4 items gave no valid rollout: reward_error (3); the last said: " in caplog.text
    assert "the judge is gone" in caplog.records[-1].getMessage()
    assert [sample.get("error") for sample in samples_in(tmp_path)] == [None, *["reward_error"] * 3]


async def test_an_evaluation_of_nothing_but_failures_is_an_error_that_says_what_the_last_one_said():
    env = make(by_turn(SOLVE[0]), cls=Failing, eval_size=4)
    env.judged = ()
    with pytest.raises(NothingCollected, match=r"none of 4 .*: reward_error \(4\); the last said: .*the judge is gone"):
        await evaluate(env)


async def test_a_killed_evaluation_goes_on_where_it_stopped(tmp_path):
    played = []

    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            if self.stop_at == len(played):
                raise asyncio.CancelledError
            played.append(item["word"])
            return 1.0

    first = make(by_turn(SOLVE[0]), cls=Env, **folder_settings(tmp_path), eval_size=5, max_eval_workers=1)
    first.stop_at = 3
    with pytest.raises((asyncio.CancelledError, BaseExceptionGroup)):
        await evaluate(first)
    second = make(by_turn(SOLVE[0]), cls=Env, **folder_settings(tmp_path), eval_size=5, max_eval_workers=1)
    second.stop_at = -1
    await evaluate(second)
    assert played == [f"word{n}" for n in range(5)]
    assert len(samples_in(tmp_path)) == 5


async def test_other_settings_do_not_continue_an_evaluation(tmp_path):
    (tmp_path / "samples.partial.jsonl").write_text('{"key": "of another run", "sample": {"reward": 9}}\n{"cut')
    await evaluate(make(by_turn(SOLVE[0]), **folder_settings(tmp_path), eval_size=2))
    assert [sample["reward"] for sample in samples_in(tmp_path)] == [1.0, 1.0]


async def test_without_held_out_items_the_same_seed_takes_the_same_items(tmp_path, caplog):
    class Env(CountingEnv):
        async def setup(self):
            await super().setup()
            self.eval_items = None

    prompts = []
    for _ in range(2):
        await evaluate(make(by_turn(SOLVE[0]), cls=Env, **folder_settings(tmp_path), eval_size=4, seed=7))
        prompts.append([sample["prompt"] for sample in samples_in(tmp_path)])
    assert prompts[0] == prompts[1]
    assert "not held out" in caplog.text


async def test_a_setup_that_shuffles_does_so_alike_in_every_run():
    import random

    class Env(CountingEnv):
        async def setup(self):
            await super().setup()
            random.shuffle(self.items)

    orders = []
    for _ in range(2):
        env = make("hi", cls=Env)
        await env.setup()
        orders.append(env.items)
    assert orders[0] == orders[1]


class HandWritten(CountingEnv):
    """An evaluation of one's own, in which a rollout is a loop and a context with one task id."""

    bound = True

    async def evaluate(self, *args, **kwargs):
        import uuid

        from environments.agent_loop import HermesAgentLoop

        self.rewards, self.task_ids = [], []
        tools, names = self._resolve_tools_for_group()
        for item in self.eval_items[:2]:
            task_id = str(uuid.uuid4())
            self.task_ids.append(task_id)
            if self.bound:
                self.bind_item(task_id, item)
            agent = HermesAgentLoop(self.server, tools, names, task_id=task_id)
            result = await agent.run([{"role": "user", "content": self.format_prompt(item)}])
            ctx = ToolContext(task_id)
            try:
                self.rewards.append(await self.compute_reward(item, result, ctx))
            finally:
                ctx.cleanup()


async def test_an_evaluation_written_by_hand_works():
    env = make(by_turn(SOLVE[0]), cls=HandWritten)
    await evaluate(env)
    assert env.rewards == [1.0, 1.0]


async def test_an_evaluation_that_names_no_item_is_told_to_where_boxes_are_prepared():
    class Env(HandWritten):
        bound = False

        async def compute_reward(self, item, result, ctx):
            raise AssertionError(result.error)

    with pytest.raises(AssertionError, match="bind_item"):
        await evaluate(make(by_turn(SOLVE[0]), cls=Env))


async def test_boxes_of_an_evaluation_that_breaks_off_are_closed():
    class Env(HandWritten):
        async def compute_reward(self, item, result, ctx):
            raise ZeroDivisionError

        async def evaluate(self, *args, **kwargs):
            ToolContext.cleanup = lambda self: None
            await super().evaluate()

    original = ToolContext.cleanup
    try:
        with pytest.raises(ZeroDivisionError):
            await evaluate(make(by_turn(SOLVE[0]), cls=Env))
    finally:
        ToolContext.cleanup = original
