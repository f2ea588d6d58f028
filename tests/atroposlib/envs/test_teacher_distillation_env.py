"""Groups carry a teacher's opinion of every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import APIServerConfig
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv
from atroposlib.errors import ConfigError, RolloutInvalid
from atroposlib.wire import validate_group


class Taught(TeacherDistillationEnv):
    name = "taught"

    async def setup(self) -> None:
        pass

    async def get_next_item(self) -> Any:
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass


class Deaf(ScriptedServer):
    """Answers for fewer tokens than it was asked about."""

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        return await super()._get_logprobs_wrapper(**{**kwargs, "input_ids": kwargs["input_ids"][1:]})


def taught(tmp_path: Path, teacher: Any = None, **config: Any) -> Taught:
    settings = {"use_wandb": False, "teacher_enabled": True, "data_path_to_save_groups": str(tmp_path / "groups.jsonl")}
    return Taught(TeacherDistillationConfig(**{**settings, **config}), [], teacher_server_configs=teacher)


def group() -> dict[str, Any]:
    return {"tokens": [[1, 2, 3], [1, 4]], "masks": [[-100, 2, 3], [-100, 4]], "scores": [0.0, 1.0]}


@pytest.mark.parametrize(("top_k", "alternatives"), [(0, 1), (3, 3)])
async def test_each_token_gets_its_alternatives(tmp_path, top_k, alternatives):
    env = taught(tmp_path, [ScriptedServer()], teacher_top_k=top_k)
    await env.handle_send_to_api([group(), None], do_send_to_api=False)
    await env.aclose()
    (line,) = (tmp_path / "groups.jsonl").read_bytes().splitlines()
    written = validate_group(orjson.loads(line))
    assert [len(each) for each in written["distill_token_ids"]] == [3, 2]
    assert {len(position) for row in written["distill_logprobs"] for position in row} == {alternatives}


async def test_an_opinion_that_is_there_stays(tmp_path):
    teacher = ScriptedServer()
    env = taught(tmp_path, [teacher])
    given: Any = {
        **group(),
        "distill_token_ids": [[[9]] * 3, [[9]] * 2],
        "distill_logprobs": [[[0.0]] * 3, [[0.0]] * 2],
    }
    await env.handle_send_to_api(given, do_send_to_api=False)
    await env.aclose()
    assert given["distill_token_ids"][0] == [[9], [9], [9]]


async def test_a_teacher_that_answers_for_other_tokens_invalidates_the_group(tmp_path):
    env = taught(tmp_path, [Deaf()])
    with pytest.raises(RolloutInvalid, match="teacher_mismatch"):
        await env.handle_send_to_api(group(), do_send_to_api=False)
    await env.aclose()


def test_a_teacher_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--teacher\.base_url"):
        taught(tmp_path)


@pytest.mark.parametrize("config", [{"teacher_enabled": False}, {"teacher_top_k": -1}])
async def test_a_teacher_that_is_off_is_not_asked(tmp_path, config):
    env = taught(tmp_path, [Deaf()], **config)
    assert env.teacher_server is None
    await env.handle_send_to_api(group(), do_send_to_api=False)
    await env.aclose()


def test_the_command_line_describes_the_teacher():
    defaults = Taught.extra_settings()
    assert isinstance(defaults["teacher"], APIServerConfig)
    teacher = APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="big")
    config = TeacherDistillationConfig(use_wandb=False, teacher_enabled=True)
    env = Taught.from_settings(config, [], slurm=False, testing=False, extra={"teacher": teacher})
    assert env.teacher_server.servers[0].config.model_name == "big"
