"""Several engines behind one face."""

import asyncio
import logging

import pytest

from atroposlib.envs.server_handling import server_baseline
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import (
    APIServerConfig,
    ServerBaseline,
    ServerManager,
)
from atroposlib.errors import ConfigError, EngineUnavailable, NotTokenExact
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(server_baseline, "FIRST_DELAY_S", 0.001)


def urls(manager):
    return [server.config.base_url for server in manager.servers]


def test_a_bare_config_is_a_list_of_one():
    manager = ServerManager(APIServerConfig(base_url="http://localhost:9001/v1"))
    assert urls(manager) == ["http://localhost:9001/v1"]
    assert isinstance(manager.servers[0], OpenAIServer)


def test_a_baseline_stands_for_four_local_engines_with_its_settings():
    manager = ServerManager(ServerBaseline(timeout=7))
    assert urls(manager) == [f"http://localhost:{port}/v1" for port in (9004, 9005, 9006, 9007)]
    assert manager.servers[3].config.timeout == 7


@pytest.mark.parametrize(
    ("server_type", "name"),
    [("openai", "OpenAIServer"), ("vllm", "VLLMServer"), ("sglang", "SGLangServer"), ("trl", "TrlVllmServer")],
)
def test_the_server_type_chooses_the_client(server_type, name):
    manager = ServerManager([APIServerConfig(base_url="http://h", server_type=server_type)])
    assert type(manager.servers[0]).__name__ == name


def test_a_server_class_of_ones_own_is_taken():
    class MyServer(OpenAIServer):
        pass

    manager = ServerManager([APIServerConfig(base_url="http://h")], server_class=MyServer)
    assert type(manager.servers[0]) is MyServer


def test_slurm_outside_slurm_is_ignored_with_a_warning(caplog, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with caplog.at_level(logging.WARNING):
        manager = ServerManager([APIServerConfig(base_url="http://h")], slurm=True)
    assert urls(manager) == ["http://h/v1"]
    assert "no Slurm job" in caplog.text


def test_in_slurm_the_nodes_after_the_training_nodes_serve(monkeypatch, tmp_path):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("NUM_TRAINING_NODES", "1")
    monkeypatch.setenv("INFER_TP", "4")
    manager = ServerManager([APIServerConfig(base_url="http://h", timeout=9)], slurm=True)
    assert urls(manager) == [f"http://{node}:{port}/v1" for node in ("n2", "n3") for port in (9000, 9001)]
    assert manager.servers[0].config.timeout == 9


async def test_testing_without_a_url_answers_from_a_script():
    async with ServerManager(ServerBaseline(), testing=True) as manager:
        answer = await manager.chat_completion(messages=HI)
        assert answer.choices[0].message.content == "This is a scripted reply."


def test_testing_with_a_url_asks_the_engine():
    assert urls(ServerManager([APIServerConfig(base_url="http://h")], testing=True)) == ["http://h/v1"]


async def test_no_engine_at_all_names_the_flag():
    async with ServerManager([]) as manager:
        with pytest.raises(ConfigError, match=r"--openai\.base_url"):
            await manager.chat_completion(messages=HI)


async def test_requests_spread_over_the_engines():
    engines = StubEngine(), StubEngine()
    async with serving(engines[0]) as first, serving(engines[1]) as second:
        configs = [APIServerConfig(base_url=url, model_name="stub") for url in (first, second)]
        async with ServerManager(configs) as manager:
            await asyncio.gather(*(manager.chat_completion(messages=HI) for _ in range(10)))
    assert [len(engine.requests) for engine in engines] == [5, 5]


async def test_an_engine_that_is_gone_is_replaced_by_another_and_then_avoided(unused_tcp_port):
    engine = StubEngine()
    async with serving(engine) as alive:
        gone = f"http://127.0.0.1:{unused_tcp_port}"
        configs = [APIServerConfig(base_url=url, model_name="stub", max_retries=0) for url in (gone, alive)]
        async with ServerManager(configs) as manager:
            for _ in range(3):
                await manager.chat_completion(messages=HI)
            assert [server.avoided for server in manager.servers] == [True, False]
    assert len(engine.requests) == 3


async def test_the_only_engine_being_gone_is_told(unused_tcp_port):
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", model_name="stub", max_retries=1)
    async with ServerManager(config) as manager:
        with pytest.raises(EngineUnavailable, match="2 attempts"):
            await manager.chat_completion(messages=HI)


async def test_many_choices_are_split_and_numbered_through():
    server = ScriptedServer([f"reply {i}" for i in range(7)])
    async with ServerManager([server], max_n_completions=3) as manager:
        answer = await manager.chat_completion(messages=HI, n=7)
    assert [request.arguments["n"] for request in server.requests] == [3, 3, 1]
    assert [choice.index for choice in answer.choices] == list(range(7))
    assert {choice.message.content for choice in answer.choices} == {f"reply {i}" for i in range(7)}


async def test_split_token_completions_keep_ids_and_logprobs_together():
    server = ScriptedServer(lambda request: "abc")
    async with ServerManager([server], max_n_completions=2) as manager:
        prompt, ids, logprobs, reasons = await manager.tokens_and_logprobs_completion(input_ids=[1, 2], n=5)
    assert prompt == [1, 2]
    assert [len(each) for each in ids] == [len(each) for each in logprobs] == [4] * 5
    assert reasons == ["stop"] * 5


async def test_recorded_completions_are_split_too_each_with_a_seed_of_its_own():
    replies = iter(f"reply {i}" for i in range(5))
    server = ScriptedServer(lambda request: next(replies))
    async with ServerManager([server]) as manager:
        manager.max_n_completions = 2  # as the command line sets it
        async with manager.managed_server() as managed:
            answer = await managed.chat_completion(messages=HI, n=5, seed=7)
            nodes = managed.get_state()["nodes"]
    asked = [(request.arguments["n"], request.arguments["seed"]) for request in server.requests]
    assert sorted(asked, key=lambda each: each[1]) == [(2, 7), (2, 9), (1, 11)]
    assert {choice.message.content for choice in answer.choices} == {f"reply {i}" for i in range(5)}
    assert len(nodes) == 5


async def test_portions_that_consumed_other_prompts_are_no_answer():
    engines = StubEngine(), StubEngine()
    engines[1].change = lambda answer: answer["choices"][0].update(prompt_token_ids=[66])
    async with serving(engines[0]) as first, serving(engines[1]) as second:
        configs = [APIServerConfig(base_url=url, model_name="stub") for url in (first, second)]
        async with ServerManager(configs, max_n_completions=1) as manager:
            with pytest.raises(NotTokenExact, match="consumed 1 ids where 2 were sent"):
                await manager.generate(input_ids=[65, 66], n=2)


async def test_the_probe_reports_the_worst_engine_and_the_smallest_context():
    exact, inexact = ScriptedServer(max_model_len=100), ScriptedServer(token_exact=False, max_model_len=50)
    async with ServerManager([exact, inexact]) as manager:
        facts = await manager.probe()
    assert (facts.token_exact, facts.reason, facts.max_model_len) == (False, "the script says so", 50)


async def test_a_managed_server_over_an_inexact_engine_is_refused():
    async with ServerManager([ScriptedServer(token_exact=False)]) as manager:
        with pytest.raises(NotTokenExact, match="the script says so"):
            async with manager.managed_server():
                pass


async def test_placeholders_have_to_be_allowed_and_are_never_trainable():
    async with ServerManager([ScriptedServer(["hello"], token_exact=False)]) as manager:
        manager.allow_placeholders = True
        async with manager.managed_server() as managed:
            await managed.chat_completion(messages=HI)
            (node,) = managed.get_state()["nodes"]
    assert set(node.masked_tokens) == {-100}
    assert node.metadata["trainable"] is False
    assert "hello" in node.full_text


async def test_a_managed_server_can_be_pinned_to_an_engine():
    configs = [
        APIServerConfig(base_url="http://a", model_name="m"),
        APIServerConfig(base_url="http://b", model_name="m"),
    ]
    manager = ServerManager([ScriptedServer(["x"], config=config) for config in configs])
    async with manager.managed_server(base_url="http://b/v1") as managed:
        assert managed.server is manager.servers[1]
    with pytest.raises(ConfigError, match="http://a/v1, http://b/v1"):
        async with manager.managed_server(base_url="http://c"):
            pass


async def test_metrics_of_all_engines_are_told_apart():
    async with ServerManager([ScriptedServer(default="x"), ScriptedServer(default="x")]) as manager:
        await asyncio.gather(*(server.chat_completion(messages=HI) for server in manager.servers))
        metrics = await manager.wandb_metrics()
    assert {"server/server_0_request_time_avg", "server/server_1_request_time_avg"} <= set(metrics)


async def test_a_weight_limits_the_training_slots_of_every_engine():
    async with ServerManager([ScriptedServer()]) as manager:
        await manager.update_weight(0.5)
        assert manager.servers[0].sem.limit == 256
        assert manager.servers[0].eval_sem.limit == 64
