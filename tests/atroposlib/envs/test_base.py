"""What environments written for the old base class rely on."""

import asyncio
import inspect
import json
from typing import Any

import pytest

from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, EvalHandlingEnum, ScoredDataGroup
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from tests.atroposlib.envs.counting_env import CountingConfig, CountingEnv


def environment(env_class: type[BaseEnv] = CountingEnv, **changes: Any) -> Any:
    return env_class(CountingConfig(**{"group_size": 2, "use_wandb": False, **changes}), [])


def test_every_name_that_environments_import_is_there():
    names = "BaseEnv BaseEnvConfig APIServerConfig ServerBaseline ScoredDataGroup ScoredDataItem EvalHandlingEnum Item"
    for name in [*names.split(), "APIServer", "OpenaiConfig"]:
        assert hasattr(base, name)


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("group_size", 4),
        ("max_num_workers", -1),
        ("max_eval_workers", 16),
        ("max_num_workers_per_node", 8),
        ("steps_per_eval", 100),
        ("max_token_length", 2048),
        ("eval_handling", EvalHandlingEnum.STOP_TRAIN),
        ("eval_limit_ratio", 0.5),
        ("inference_weight", 1.0),
        ("batch_size", -1),
        ("max_batches_offpolicy", 3),
        ("tokenizer_name", "NousResearch/DeepHermes-3-Llama-3-3B-Preview"),
        ("use_wandb", True),
        ("rollout_server_url", "http://localhost:8000"),
        ("total_steps", 1000),
        ("wandb_name", None),
        ("num_rollouts_to_keep", 32),
        ("num_rollouts_per_group_for_logging", 1),
        ("ensure_scores_are_not_same", True),
        ("data_path_to_save_groups", None),
        ("data_dir_to_save_evals", None),
        ("min_items_sent_before_logging", 2),
        ("include_messages", False),
        ("min_batch_allocation", None),
        ("worker_timeout", 600),
        ("thinking_mode", False),
        ("reasoning_effort", None),
        ("max_reasoning_tokens", None),
        ("custom_thinking_prompt", None),
    ],
)
def test_the_settings_have_their_old_names_and_defaults(field, default):
    assert getattr(BaseEnvConfig(), field) == default


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("__init__", "self config server_configs slurm testing"),
        ("handle_send_to_api", "self scored_data item do_send_to_api abort_on_any_max_length_exceeded"),
        ("handle_env", "self item_uuid"),
        ("wandb_log", "self wandb_metrics"),
        ("create_rollout_table", "self wandb_metrics"),
        ("add_rollouts_for_wandb", "self scored_data item"),
        ("save_checkpoint", "self step data"),
        ("perf_stats", "self metrics_dict"),
        (
            "evaluate_log",
            "self metrics task_name model_name start_time end_time generation_parameters samples verbose",
        ),
    ],
)
def test_the_methods_take_what_they_took(method, parameters):
    assert " ".join(inspect.signature(getattr(BaseEnv, method)).parameters) == parameters


ATTRIBUTES = """
    config server rollouts_for_wandb completion_lengths curr_step wandb_prepend name max_token_len status_dict
    items_sent_this_step process_mode checkpoint_dir workers eval_workers eval_runner backlog running_items
    max_num_workers wandb_project wandb_group env_id jsonl_writer derived_batch_size n_groups_to_process
    group_size_to_process last_completed_item
"""


async def test_attributes_that_environments_read_are_there():
    env = environment()
    for name in ATTRIBUTES.split():
        assert hasattr(env, name), name
    env.tokenizer = "mine"
    assert env.tokenizer == "mine"
    await env.aclose()


async def test_an_overridden_step_is_called_by_the_run(tmp_path):
    called = []

    class Overriding(CountingEnv):
        async def handle_env(self, item_uuid):
            called.append("handle_env")
            return await super().handle_env(item_uuid)

        async def postprocess_histories(self, trajectories):
            called.append("postprocess_histories")
            return trajectories

        async def handle_send_to_api(self, scored_data, item=None, **rest):
            called.append("handle_send_to_api")
            return await super().handle_send_to_api(scored_data, item, **rest)

        async def cleanup(self):
            called.append("cleanup")

    env = environment(Overriding, total_steps=1, data_path_to_save_groups=str(tmp_path / "g.jsonl"))
    await env.process_manager()
    await env.aclose()
    assert called == ["handle_env", "postprocess_histories", "handle_send_to_api", "cleanup"]


@pytest.mark.parametrize("how", ["raises", "is cancelled", "times out"])
async def test_cleanup_runs_however_an_item_ends(how):
    class Failing(CountingEnv):
        async def collect_trajectories(self, item):
            if how == "raises":
                raise KeyError("x")
            await asyncio.sleep(60)

    env = environment(Failing, worker_timeout=0.01 if how == "times out" else 0)
    await env.setup()
    async with env.pool:
        await env.start_worker()
        await asyncio.sleep(0)
        if how == "is cancelled":
            env.pool.cancel_workers()
        await env.pool.wait(5)
    assert env.cleaned == 1
    assert env.rollout_failures == {"raises": {"KeyError": 1}, "is cancelled": {}, "times out": {"timeout": 1}}[how]
    await env.aclose()


async def test_a_group_goes_short_but_never_alone():
    env = environment(group_size=3, fail_every=1)
    await env.setup()
    assert (await env.collect_trajectories({"n": 1}))[0] is None
    env = environment(group_size=3)
    await env.setup()
    outcomes = iter([True, True])

    async def sometimes(item):
        if not next(outcomes, False):
            raise RuntimeError("no")
        return {"tokens": [1], "masks": [1], "scores": 1.0}, [item]

    env.collect_trajectory = sometimes
    group, backlog = await env.collect_trajectories({"n": 1})
    assert len(group["scores"]) == 2
    assert len(backlog) == 2
    assert env.rollout_failures["RuntimeError"] == 3
    await env.aclose()


async def test_a_rollouts_table_and_lengths_are_logged(tmp_path):
    env = environment(metrics_dir=str(tmp_path), num_rollouts_per_group_for_logging=-1, num_rollouts_to_keep=2)
    await env.setup_wandb()
    env.process_mode = True
    for number in range(3):
        group = ScoredDataGroup()
        group["tokens"], group["masks"], group["scores"] = [[1, 2, 3]] * 2, [[-100, 2, 3]] * 2, [0.0, float(number + 1)]
        group["messages"] = [[{"role": "user", "content": f"item {number}"}]] * 2
        await env.handle_send_to_api(group, {"n": number}, do_send_to_api=False)
    await env.wandb_log({"mine": 1})
    await env.aclose()
    (line,) = [json.loads(each) for each in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["mine"] == 1
    assert (line["train/completion_lengths"], line["train/completion_lengths_max"]) == (2.0, 2)
    assert len(line["train/rollouts"]["rows"]) == 4
    assert env.completion_lengths == []


async def test_messages_are_made_from_tokens_only_where_a_tokenizer_is_at_hand(tmp_path):
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return "-".join(map(str, ids))

    def fresh() -> ScoredDataGroup:
        return {"tokens": [[1, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [0.0, 1.0]}

    env = environment(include_messages=True, tokenizer_name="/absent")
    env.process_mode = True
    group = fresh()
    await env.handle_send_to_api(group, do_send_to_api=False)
    assert "messages" not in group
    env.tokenizer = Tokenizer()
    await env.handle_send_to_api(group, do_send_to_api=False)
    assert group["messages"][0] == [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    await env.aclose()


@pytest.mark.parametrize("method", ["collect_trajectories", "collect_trajectory"])
async def test_a_forgotten_list_of_items_for_later_is_named(method):
    async def forgets(self, item):
        return {"tokens": [[1]], "masks": [[1]], "scores": [1.0]}

    env = environment(type("Forgets", (CountingEnv,), {method: forgets}))
    await env.setup()
    async with env.pool:
        await env.start_worker()
        await env.pool.wait(5)
    assert set(env.rollout_failures) == {"TypeError"}
    assert env.rollout_failures.last == f"{method}() gave dict; it must return two things, as in `return collected, []`"
    await env.aclose()


async def test_the_batch_of_an_environment_is_what_others_leave_of_the_trainers():
    env = environment(batch_size=32)
    assert env.derived_batch_size == 32
    env.status_dict["unallocated_fraction"] = 0.75
    assert env.derived_batch_size == 24
    env.config.min_batch_allocation = 0.5
    assert env.derived_batch_size == 32
    await env.aclose()


async def test_workers_follow_the_number_of_engines_and_the_weight():
    servers = [APIServerConfig(base_url=f"http://127.0.0.1:{port}/v1") for port in (1, 2)]
    env = CountingEnv(CountingConfig(max_num_workers_per_node=8, use_wandb=False), servers)
    assert env.max_num_workers == 16
    await env.aclose()


async def test_ready_engines_may_be_given_to_an_environment():
    engine = ScriptedServer(default="said")
    env = CountingEnv(CountingConfig(ask_engine=True, use_wandb=False), [engine])
    await env.setup()
    rollout, _ = await env.collect_trajectory({"n": 3})
    assert rollout["messages"][1]["content"] == "said"
    await env.aclose()
