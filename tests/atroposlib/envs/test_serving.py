"""``serve`` from end to end: a real trajectory server, a trainer that takes batches, and what can go wrong."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atroposlib.api.server import create_app
from atroposlib.envs import serving
from atroposlib.envs.base import BaseEnv, EvalHandlingEnum
from atroposlib.errors import QueueUnavailable
from tests.atroposlib.api.serving import ServerProcess
from tests.atroposlib.api.serving import serving as api_serving
from tests.atroposlib.envs.counting_env import CountingConfig, CountingEnv
from tests.atroposlib.envs.trainer import Trainer, numbers
from tests.machine import until


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with api_serving(create_app()) as address:
        yield address


def environment(url: str, env_class: type[BaseEnv] = CountingEnv, **changes: Any) -> Any:
    settings = {"group_size": 2, "use_wandb": False, "max_num_workers": 4, "rollout_server_url": url}
    return env_class(CountingConfig(**{**settings, **changes}), [])


@contextlib.asynccontextmanager
async def running(env: BaseEnv) -> AsyncIterator[asyncio.Task[None]]:
    """The environment serves meanwhile; it is stopped at the end if it still does."""
    task = asyncio.create_task(env.env_manager())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await env.aclose()


async def test_a_run_ends_by_itself_when_the_trainer_has_its_steps(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=3)
    env = environment(url)
    async with running(env) as task, asyncio.timeout(30):
        batches = await trainer.take(3)
        await task
    assert sorted(number for batch in batches for number in numbers(batch)) == [1, 2, 3, 4, 5, 6]
    assert env.curr_step == 3
    assert env.config.total_steps == 3
    assert env.cleaned >= 6
    assert (await trainer.status())["connected_envs"] == 0


async def test_everything_a_rollout_carries_reaches_the_trainer(url):
    trainer = Trainer(url)
    await trainer.register()
    async with running(environment(url, items=2)):
        ((group, _),) = await trainer.take(1)
    assert group["inference_logprobs"] == [[1.0, -0.5, -0.25]] * 2
    assert group["overrides"][0]["attempt"] != group["overrides"][1]["attempt"]
    assert group["messages"][0][0] == {"role": "user", "content": str(group["tokens"][0][0])}


async def test_no_more_is_collected_than_may_be_ahead_of_the_trainer(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=100)
    env = environment(url, max_batches_offpolicy=2, max_num_workers=50)
    async with running(env), asyncio.timeout(30):
        await trainer.take(1)
        queued = -1
        while queued < 8 or env.workers or env.status_dict["queue_size"] * 2 != queued:
            await asyncio.sleep(0.1)
            queued = (await trainer.status())["queued_sequences"]
    # two batches of four sequences may be ahead; what was on its way when the status was asked comes on top
    assert queued <= 16


async def test_a_group_that_is_being_noted_when_the_environment_ends_still_reaches_the_trainer(
    url, monkeypatch, tmp_path
):
    noting = asyncio.Event()

    async def note(self: BaseEnv, *group_and_item: object) -> None:
        noting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CountingEnv, "add_rollouts_for_wandb", note)
    trainer = Trainer(url)
    await trainer.register(batch_size=2)
    await trainer.start()
    async with running(environment(url, items=1, metrics_dir=str(tmp_path))), asyncio.timeout(10):
        await noting.wait()
    async with asyncio.timeout(10):
        assert [numbers(batch) for batch in await trainer.take(1)] == [[1]]


async def test_the_environment_may_be_started_before_server_and_trainer():
    server = ServerProcess()
    env = environment(server.url)
    async with running(env) as task, asyncio.timeout(60):
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        try:
            trainer = Trainer(server.url)
            await trainer.register(num_steps=1)
            await trainer.take(1)
            await task
        finally:
            server.kill()


async def test_a_server_that_never_comes_is_given_up_by_name():
    env = environment("http://127.0.0.1:9", rollout_server_wait_s=0.1)
    with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:9.*--env.rollout_server_wait_s"):
        await env.env_manager()
    await env.aclose()


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_restarted_server_is_served_on(tmp_path, keeps):
    server = ServerProcess(*(["--store", str(tmp_path / "queue.sqlite")] if keeps else []))
    await asyncio.to_thread(server.start)
    try:
        trainer = Trainer(server.url)
        await trainer.register(num_steps=50)
        env = environment(server.url)
        async with running(env), asyncio.timeout(60):
            await trainer.take(2)
            server.kill()
            await until(lambda: env.queue_client.unsent or not env.workers)
            await asyncio.to_thread(server.start)
            if not keeps:
                await trainer.register(num_steps=50)
            more = await trainer.take(3)
            assert all(len(batch) == 2 for batch in more)
            await until(lambda: env.queue_client.unsent == 0)
    finally:
        server.kill()
    delivered = [number for batch in trainer.batches for number in numbers(batch)]
    assert len(set(delivered)) == len(delivered)


async def test_the_trainers_batch_size_goes_before_the_setting(url, caplog):
    caplog.set_level("INFO")
    trainer = Trainer(url)
    await trainer.register(num_steps=1, batch_size=24)
    async with running(environment(url, batch_size=2, max_batches_offpolicy=1)) as task, asyncio.timeout(30):
        assert [len(batch) for batch in await trainer.take(1)] == [12]
        await task
    assert "step 0 of 1, batches of 24 sequences, groups of 2" in caplog.text


async def test_a_trainer_that_begins_a_new_run_is_served_on(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=50)
    env = environment(url)
    async with running(env), asyncio.timeout(30):
        await trainer.take(2)
        await trainer.reset()
        await trainer.register(num_steps=50, batch_size=6)
        assert all(len(batch) == 3 for batch in await trainer.take(2))
        await until(lambda: env.derived_batch_size == 6)


async def test_a_token_is_read_from_the_variable_that_is_named(monkeypatch):
    monkeypatch.setenv("TOKEN_OF_THE_TEST", "open-sesame")
    async with api_serving(create_app(token="open-sesame")) as url:
        trainer = Trainer(url, token="open-sesame")
        await trainer.register(num_steps=1)
        async with running(environment(url, rollout_server_token_env="TOKEN_OF_THE_TEST")) as task:
            await trainer.take(1)
            await task


async def test_groups_bigger_than_a_batch_are_an_error_at_the_start(url):
    trainer = Trainer(url)
    await trainer.register(batch_size=4)
    await trainer.start()
    env = environment(url, group_size=8)
    with pytest.raises(ValueError, match=r"--env.group_size is 8, but a batch of the trainer holds 4"):
        await env.env_manager()
    await env.aclose()


async def test_an_environment_of_which_every_group_is_left_out_says_so(url, caplog, monkeypatch):
    class Same(CountingEnv):
        async def collect_trajectory(self, item):
            rollout, later = await super().collect_trajectory(item)
            return {**rollout, "scores": 1.0}, later

    monkeypatch.setattr(serving, "SAY_EVERY_S", 0.1)
    trainer = Trainer(url)
    await trainer.register()
    await trainer.start()
    async with running(environment(url, Same, seconds=0.01)):
        await until(lambda: "no group was sent for 0 s. Left out so far: all scores are the same (" in caplog.text)


# evaluations and checkpoints


class Evaluating(CountingEnv):
    """Notes how many workers run while it evaluates."""

    async def setup(self) -> None:
        await super().setup()
        self.workers_seen: list[int] = []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.evaluations.append(self.curr_step)
        for _ in range(10):
            self.workers_seen.append(len(self.workers))
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("handling", "most"),
    [(EvalHandlingEnum.STOP_TRAIN, 0), (EvalHandlingEnum.LIMIT_TRAIN, 2), (EvalHandlingEnum.NONE, 4)],
)
async def test_training_stops_or_slows_down_for_an_evaluation(url, handling, most):
    trainer = Trainer(url)
    await trainer.register(num_steps=100)
    env = environment(url, Evaluating, eval_handling=handling, steps_per_eval=2, seconds=0.02, max_batches_offpolicy=50)
    async with running(env), asyncio.timeout(30):
        await trainer.take(3)
        await until(lambda: env.workers_seen and env.eval_runner is None)
    # when it begins, workers that were running may still end
    assert max(env.workers_seen[4:]) <= most
    assert env.evaluations[0] >= 2


async def test_a_step_that_jumps_over_a_multiple_still_brings_evaluation_and_checkpoint(url, tmp_path):
    env = environment(url, steps_per_eval=100)
    await env.setup()
    env.checkpoint_dir, env.checkpoint_interval, env.wandb_prepend = str(tmp_path), 100, "../up/x_0"
    async with env.pool:
        for step in (50, 150, 199, 200):
            env.status_dict["current_step"] = step
            await env.env_step_checks()
            await env.pool.wait(0.2)
    assert env.evaluations == [150, 200]
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == ["step-150.json", "step-200.json"]
    assert (tmp_path / "env_checkpoints" / "_up_x_0").is_dir()
    await env.aclose()


async def test_what_an_evaluation_raises_ends_the_run(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=100)
    env = environment(url, steps_per_eval=1, evaluate_raises=True)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(trainer.take(100))
        with pytest.raises(RuntimeError, match="the evaluation failed"):
            await env.env_manager()
        taking.cancel()
    assert env.cleaned == len(env.pool.durations)
    await env.aclose()


async def test_the_last_evaluation_is_awaited(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=2)
    env = environment(url, Evaluating, steps_per_eval=2)
    async with running(env) as task, asyncio.timeout(30):
        await trainer.take(2)
        await task
    assert env.evaluations == [2]
    assert len(env.workers_seen) == 10


async def test_an_environment_that_comes_after_the_end_of_a_run_says_so(url, caplog):
    trainer = Trainer(url)
    await trainer.register(num_steps=3, starting_step=3)
    await trainer.start()
    env = environment(url)
    async with running(env) as task, asyncio.timeout(30):
        await task
    assert f"the run at {url} is over; for another one start a trainer first" in caplog.text


async def test_an_environment_gives_signs_of_life_while_it_evaluates_at_the_end(url):
    class Waiting(CountingEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            self.evaluations.append(self.curr_step)
            for _ in range(2):
                self.status_dict.pop("current_step", None)
                await until(lambda: "current_step" in self.status_dict)

    trainer = Trainer(url)
    await trainer.register(num_steps=2)
    env = environment(url, Waiting, steps_per_eval=2)
    async with running(env) as task, asyncio.timeout(30):
        await trainer.take(2)
        await task
    assert env.evaluations == [2]


async def test_an_environment_goes_on_from_its_checkpoint(url, tmp_path):
    folder = tmp_path / "env_checkpoints" / "counting_0"
    folder.mkdir(parents=True)
    (folder / "step-5.json").write_text(json.dumps({"count": 41, "server": "mine", "handle_env": 1, "_tokenizer": 2}))
    trainer = Trainer(url)
    await trainer.register(starting_step=5, num_steps=6, checkpoint_dir=str(tmp_path))
    env = environment(url)
    async with running(env), asyncio.timeout(30):
        (batch,) = await trainer.take(1)
    assert min(numbers(batch)) == 42
    assert not isinstance(env.server, str)
    assert callable(env.handle_env)


# metrics


async def test_metrics_are_written_at_each_step_without_wandb(url, tmp_path):
    trainer = Trainer(url)
    await trainer.register(num_steps=3)
    async with running(environment(url, metrics_dir=str(tmp_path), fail_every=7)) as task, asyncio.timeout(30):
        await trainer.take(3)
        await task
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written[0]["train/completion_lengths"] == 2.0
    assert "train/rollouts" in written[0]
    assert written[-1]["rollouts/failed/RuntimeError"] >= 1
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["group"], about["project"]) == ("group", "project")


# the end


async def test_a_second_signal_does_not_wait_for_a_clean_up_that_hangs(url):
    trainer = Trainer(url)
    await trainer.register(num_steps=100)
    program = "from tests.atroposlib.envs.test_serving import Hanging; Hanging.cli()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "serve", "--env.rollout_server_url", url, "--env.seconds", "60"),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        await trainer.start()
        assert await process.stdout.readline() == b"collecting\n"
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"cleaning up\n"
        process.send_signal(signal.SIGTERM)
        await process.wait()
    assert process.returncode == 143


class Hanging(CountingEnv):
    """Never done with its clean-up."""

    async def get_next_item(self) -> Any:
        return await super().get_next_item() if self.count == 0 else None

    async def collect_trajectories(self, item: Any) -> Any:
        sys.stdout.write("collecting\n")
        sys.stdout.flush()
        return await super().collect_trajectories(item)

    async def cleanup(self) -> None:
        sys.stdout.write("cleaning up\n")
        sys.stdout.flush()
        await asyncio.sleep(600)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
async def test_a_signal_ends_a_serving_process_cleanly(url, tmp_path, number, code):
    trainer = Trainer(url)
    await trainer.register(num_steps=100)
    path = tmp_path / "groups.jsonl"
    command = [sys.executable, "-m", "tests.atroposlib.envs.counting_env", "serve", "--env.rollout_server_url", url]
    process = await asyncio.create_subprocess_exec(
        *command, "--env.data_path_to_save_groups", str(path), "--env.seconds", "0.05", stderr=subprocess.PIPE
    )
    async with asyncio.timeout(30):
        await trainer.take(2)
        process.send_signal(number)
        _, said = await process.communicate()
    assert process.returncode == code, said.decode()
    assert b"Traceback" not in said
    assert len([json.loads(line) for line in path.read_text().splitlines()]) >= 4
    assert (await trainer.status())["connected_envs"] == 0
