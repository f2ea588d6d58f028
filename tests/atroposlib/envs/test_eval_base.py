"""Evaluations without an environment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.eval import EvalBase, eval_runner, evaluate_log, pass_at_k
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import ConfigError


class Sums(EvalBase):
    """Asks for sums."""

    def setup_data(self) -> list[Any]:
        return getattr(self, "items", [(1, 1), (1, 2), (2, 2), (2, 3)])

    async def run_item(self, server: ServerManager, data_item: Any) -> tuple[dict[str, float], list[Any]]:
        left, right = data_item
        answer = await self.chat_completion(server, [{"role": "user", "content": f"{left}+{right}"}])
        said = answer.choices[0].message.content
        return {"accuracy": float(said == str(left + right))}, [{"said": said}]


def always_four(request: Any) -> str:
    return "4"


@given(st.integers(1, 20).flatmap(lambda m: st.tuples(st.just(m), st.integers(0, m), st.integers(1, m))))
def test_pass_at_k_is_a_probability_that_grows(case):
    m, c, k = case
    chance = pass_at_k(m, c, k)
    assert 0 <= chance <= 1
    assert pass_at_k(m, m, k) == 1
    assert pass_at_k(m, 0, k) == 0
    assert chance <= pass_at_k(m, c, min(m, k + 1)) + 1e-12
    assert pass_at_k(m, c, 1) == pytest.approx(c / m)


async def test_metrics_are_means_and_results_are_written(tmp_path, capsys):
    server = ScriptedServer(always_four)
    evaluation = Sums(temperature=0.5, eval_dir=str(tmp_path), verbose=True)
    metrics = await evaluation(ServerManager([server]))
    assert metrics == {"accuracy": 0.25}
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"]["atropos|Sums@1|0"] == written["results"]["all"] == metrics
    assert written["config_general"]["generation_parameters"] == evaluation.get_generation_params()
    assert [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()] == [{"said": "4"}] * 4
    assert "accuracy" in capsys.readouterr().out
    assert {request.arguments["temperature"] for request in server.requests} == {0.5}
    assert not any("max_tokens" in request.arguments for request in server.requests)


async def test_what_an_item_raises_ends_the_evaluation(tmp_path):
    server = ScriptedServer(["2", RuntimeError("broken"), "4", "5"])
    with pytest.raises(RuntimeError, match="broken"):
        await Sums(eval_dir=str(tmp_path))(ServerManager([server]))
    assert not (tmp_path / "metrics.json").exists()


async def test_no_items_are_an_error_of_configuration():
    with pytest.raises(ConfigError, match="no items"):
        await Sums(items=[])(ServerManager([ScriptedServer()]))


@pytest.mark.parametrize(("n", "samples", "name"), [(1, 1, "Sums@1"), (1, 8, "Sums@1:8"), (4, 4, "Sums@4")])
def test_the_task_is_named_by_how_often_it_is_tried(n, samples, name):
    evaluation = Sums(pass_at_n=n, pass_at_n_samples=samples)
    assert evaluation.task_name == name
    assert evaluation.get_generation_params()["n"] == max(n, samples)


async def test_a_runner_reads_the_engine_from_the_command_line():
    class Asked(Sums):
        async def __call__(self, server_manager: ServerManager) -> Any:
            return server_manager.servers[0].config

    config = await eval_runner(Asked(), ["--server-url", "http://127.0.0.1:1/v1", "--model-name", "mine"])
    assert (config.base_url, config.model_name) == ("http://127.0.0.1:1/v1", "mine")
    assert (await eval_runner(Asked(), [])).model_name == "default"


def test_results_without_a_folder_are_shown_and_the_loss_is_logged(caplog, capsys):
    evaluate_log({"a": 1.0}, task_name="task")
    assert "eval_dir is not set" in caplog.text
    assert "task" in capsys.readouterr().out
