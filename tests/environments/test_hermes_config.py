"""Settings of tool-using agents: what each does, and what is said of those that do nothing."""

from __future__ import annotations

import pytest

from atroposlib.envs import config as settings
from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.hermes_config import HermesAgentEnvConfig
from tests.environments.dataset_environment.scripted import make_env
from tests.environments.scripted_env import ITEM, make


@pytest.fixture(autouse=True)
def _nothing_said_before():
    settings.warn_once.cache_clear()


@pytest.mark.parametrize(
    ("config", "values", "said"),
    [
        (HermesAgentEnvConfig, {"tool_pool_size": 4}, "--env.tool_pool_size has no effect: tools need no pool"),
        (DatasetEnvConfig, {"tool_pool_size": 4}, "--env.tool_pool_size has no effect: tools need no pool"),
        (DatasetEnvConfig, {"length_warmup_steps": 10}, "--env.length_warmup_steps has no effect: a reward judges"),
        (
            HermesAgentEnvConfig,
            {"custom_thinking_prompt": "Think."},
            "--env.custom_thinking_prompt has no effect without --env.thinking_mode",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_named_once(config, values, said, caplog):
    config(**values), config(**values)
    (record,) = caplog.records
    assert record.message.startswith(said)


def test_nothing_is_said_of_old_settings_that_ask_for_nothing(caplog):
    DatasetEnvConfig(tool_pool_size=128, length_warmup_steps=0, min_tokens=0)
    assert not caplog.records


@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
async def test_the_thinking_prompt_goes_before_the_system_prompt(system_prompt):
    env = make("done", thinking_mode=True, custom_thinking_prompt="Think first.", system_prompt=system_prompt)
    member, _ = await env.collect_trajectory(ITEM)
    wanted = "\n\n".join(text for text in ("Think first.", system_prompt) if text)
    assert member["messages"][0] == {"role": "system", "content": wanted}


async def test_the_thinking_prompt_is_put_to_the_questions_of_a_data_set_too(dataset):
    env = make_env(lambda _: "7", **dataset, thinking_mode=True, custom_thinking_prompt="Think first.")
    await env.setup()
    member, _ = await env.collect_trajectory(await env.get_next_item())
    assert member["messages"][0] == {"role": "system", "content": "Think first."}


async def test_the_shortest_answer_is_asked_of_the_engine(dataset):
    env = make_env(lambda _: "7", **dataset, min_tokens=5)
    await env.setup()
    await env.collect_trajectory(await env.get_next_item())
    assert env.engine.requests[-1].arguments["extra_body"] == {"min_tokens": 5}


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "What is 3 and 4?", "answer": "7"}\n' * 3)
    return {"dataset_name": None, "dataset_path": str(tmp_path / "rows.jsonl"), "dataset_config": None}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"enabled_toolsets": ["nothing"]}, "Unknown toolset 'nothing'"),
        ({"enabled_toolsets": None, "distribution": "x"}, "Unknown distribution 'x'"),
        ({"terminal_backend": "modal"}, "unknown terminal_backend 'modal'; known are .*docker"),
        ({"enabled_toolsets": ["file"], "distribution": "default"}, "exclude each other"),
        ({"tool_call_parser": "nope"}, "unknown tool_call_parser 'nope'"),
        ({"max_agent_turns": 0}, "max_agent_turns"),
        ({"sandbox_network": "host"}, "sandbox_network"),
    ],
)
def test_wrong_settings_are_named(values, word):
    with pytest.raises(ValueError, match=word):
        make("hi", **values)


async def test_an_image_for_a_backend_without_images_is_refused_at_the_start():
    with pytest.raises(ConfigError, match="docker_image"):
        await make("hi", docker_image="x:y").setup()


async def test_a_backend_is_looked_at_only_where_a_tool_needs_a_box():
    await make("hi", docker_image="x:y", enabled_toolsets=["todo"]).setup()


def test_the_default_backend_is_docker_and_the_defaults_of_old_hold():
    config = HermesAgentEnvConfig()
    assert config.terminal_backend == "docker"
    assert (config.max_agent_turns, config.terminal_timeout, config.tool_call_parser) == (30, 120, "hermes")
    assert config.build_budget_config().turn_budget == 200_000


def test_an_item_may_name_its_image():
    env = make("hi", docker_image="debian:12")
    assert env.sandbox_spec({"word": "x", "docker_image": "python:3.12"}).image == "python:3.12"
    assert env.sandbox_spec({"word": "x"}).image == "debian:12"
