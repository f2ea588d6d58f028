"""The engines of a run: there or not, which model, whose tokenizer, and what is said of each."""

import asyncio

import pytest
from aiohttp import web

from atroposlib.api.server import create_app
from atroposlib.envs.base import ServerBaseline
from tests.atroposlib.api.serving import serving as api_serving
from tests.atroposlib.envs.counting_env import ChatEnv, CountingEnv, lines, run
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving
from tests.environments.agent_engine import save_tokenizer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs write where they are started unless told otherwise."""
    monkeypatch.chdir(tmp_path)


def test_a_run_whose_only_trouble_is_the_engine_says_so(tmp_path, capsys):
    class DefaultPorts(CountingEnv):
        @classmethod
        def config_init(cls):
            config, _ = super().config_init()
            return config.model_copy(update={"ask_engine": True}), ServerBaseline(max_retries=0)

    assert run(DefaultPorts, "process", "--env.total_steps", "1") == 2
    assert "--openai.base_url" in capsys.readouterr().err


def test_rollouts_that_find_no_engine_show_no_traceback_and_end_with_the_flag(capsys, caplog):
    class Probes(CountingEnv):
        @classmethod
        def config_init(cls):
            return super().config_init()[0], ServerBaseline()

        async def collect_trajectory(self, item):
            return await self.server.probe()

    assert run(Probes, "process", "--env.total_steps", "1") == 2
    assert "(EngineBusy): no connection to http" in caplog.text
    assert not any(record.exc_info for record in caplog.records)
    assert "See --openai.base_url" in capsys.readouterr().err


def test_an_environment_that_needs_no_engine_runs_with_the_default_one_absent(tmp_path):
    class Default(CountingEnv):
        @classmethod
        def config_init(cls):
            return super().config_init()[0], ServerBaseline()

    assert run(Default, "process", "--env.total_steps", "1") == 0


async def test_process_works_with_an_engine_that_gives_no_token_ids(tmp_path, caplog):
    engine = StubEngine(gives_ids=False)
    path = tmp_path / "groups.jsonl"
    async with serving(engine) as url:
        words = ("process", "--env.total_steps", "2", "--openai.base_url", url, "--data_path_to_save_groups", str(path))
        assert await asyncio.to_thread(run, ChatEnv, *words) == 0
    assert lines(path)[1]["messages"][0][1]["content"] == "you said 2"
    assert "nothing from this run can be trained on" in caplog.text


async def test_serve_stops_at_an_engine_that_gives_no_token_ids(capsys):
    async with serving(StubEngine(gives_ids=False)) as url:
        assert await asyncio.to_thread(run, ChatEnv, "serve", "--openai.base_url", url) == 2
    said = capsys.readouterr().err
    assert "token ids" in said
    assert "vLLM" in said


async def test_the_model_is_asked_for_where_none_is_named(tmp_path):
    engine = StubEngine(models=["the-only-one"])
    async with serving(engine) as url:
        words = ("--env.total_steps", "1", "--openai.base_url", url, "--data_path_to_save_groups", str(tmp_path / "g"))
        assert await asyncio.to_thread(run, ChatEnv, "process", *words) == 0
    assert {body["model"] for body in engine.bodies("/v1/chat/completions")} == {"the-only-one"}


async def test_several_models_are_listed_in_the_error(capsys):
    async with serving(StubEngine(models=["first", "second"])) as url:
        assert await asyncio.to_thread(run, ChatEnv, "process", "--openai.base_url", url) == 2
    assert "first, second" in capsys.readouterr().err


class RootedEngine(StubEngine):
    """Says where its model was loaded from."""

    root = ""

    async def _models(self, request):
        return web.json_response({"data": [{"id": name, "root": self.root} for name in self.models]})


@pytest.mark.parametrize(
    ("root", "words", "expected"),
    [
        ("{tmp}", [], "{tmp}"),
        ("org/model", [], "org/model"),
        ("/of/another/machine", [], "stub"),
        ("", [], "stub"),
        ("{tmp}", ["--env.tokenizer_name", "mine"], "mine"),
        ("{tmp}", ["--openai.tokenizer_name", "theirs"], "theirs"),
    ],
)
async def test_the_tokenizer_is_the_models_own_unless_another_is_named(tmp_path, root, words, expected):
    names = []

    class Noting(ChatEnv):
        async def setup(self):
            await super().setup()
            names.append(self.config.tokenizer_name)

    engine = RootedEngine()
    engine.root = root.format(tmp=tmp_path)
    async with serving(engine) as url:
        words = ["process", "--env.total_steps", "1", "--openai.base_url", url, *words]
        assert await asyncio.to_thread(run, Noting, *words) == 0
    assert names == [expected.format(tmp=tmp_path)]


def test_an_engine_that_is_not_there_is_named(capsys):
    assert run(ChatEnv, "process") == 2
    said = capsys.readouterr().err
    assert "no engine answered at http://127.0.0.1:9/v1 within 0 s; start it, or correct --openai.base_url" in said
    assert "Connect call failed" in said


def test_with_testing_and_no_url_a_scripted_engine_answers(tmp_path):
    class Scripted(CountingEnv):
        async def collect_trajectory(self, item):
            assert self.tokenizer.decode(self.tokenizer.encode("some text")) == "some text"
            return await super().collect_trajectory(item)

    path = tmp_path / "g.jsonl"
    words = ("--testing", "--env.total_steps", "1", "--env.data_path_to_save_groups", str(path))
    assert run(Scripted, "process", *words) == 0


def test_engine_and_trajectory_server_on_one_address_is_an_error(capsys):
    assert run(CountingEnv, "serve", "--openai.base_url", "http://localhost:8000/v1") == 2
    said = capsys.readouterr().err
    assert "--openai.base_url" in said
    assert "--env.rollout_server_url" in said


async def test_serve_looks_for_its_tokenizer_before_anything_else(capsys):
    async with serving(StubEngine()) as url:
        words = ("serve", "--openai.base_url", url, "--env.tokenizer_name", "/nowhere")
        assert await asyncio.to_thread(run, ChatEnv, *words) == 2
    assert "--env.tokenizer_name" in capsys.readouterr().err


async def test_serve_stops_at_a_tokenizer_of_another_model(tmp_path, capsys):
    folder = save_tokenizer(tmp_path / "other")
    async with serving(StubEngine()) as url:
        words = ("serve", "--openai.base_url", url, "--env.tokenizer_name", str(folder))
        assert await asyncio.to_thread(run, ChatEnv, *words) == 2
    said = capsys.readouterr().err
    assert f"--env.tokenizer_name '{folder}' is not the tokenizer of the model at {url}/v1 (stub)" in said


async def test_a_run_whose_engine_refuses_everything_names_the_model(capsys):
    engine = StubEngine()
    engine.refusals = {"/v1/chat/completions": "this model does not chat"}
    async with serving(engine) as url:
        assert await asyncio.to_thread(run, ChatEnv, "process", "--openai.base_url", url) == 2
    assert "does it serve that model? See --openai.base_url and --openai.model_name" in capsys.readouterr().err


@pytest.mark.parametrize("route", ["chat/completions", "completions", "models", "chat", "chat/completions/?timeout=1"])
def test_a_route_given_as_the_url_of_the_engine_is_an_error_that_names_the_base(route, capsys):
    url = f"http://localhost:9/v1/{route}"
    assert run(ChatEnv, "process", "--openai.base_url", url) == 2
    said = capsys.readouterr().err
    assert f"--openai.base_url: {url.rstrip('/')} is a route of an engine" in said
    assert said.endswith("give the base of its routes: http://localhost:9/v1\n")


class Routed(StubEngine):
    """Knows only some routes."""

    only: tuple[str, ...] = ()

    def routes(self):
        return {route: answer for route, answer in super().routes().items() if route in self.only}


async def test_an_engine_that_knows_nothing_but_chats_is_an_engine(tmp_path, capsys):
    engine = Routed()
    engine.only = ("POST /v1/chat/completions",)
    path = tmp_path / "groups.jsonl"
    async with serving(engine) as url:
        words = ("process", "--env.total_steps", "1", "--openai.base_url", url, "--openai.model_name")
        saving = ("--data_path_to_save_groups", str(path))
        for more in ((), ("--openai.health_check", "false")):
            assert await asyncio.to_thread(run, ChatEnv, *words, "stub", *saving, *more) == 0
        assert await asyncio.to_thread(run, ChatEnv, *words, "absent") == 2
    assert "--openai.model_name absent: http" in capsys.readouterr().err


async def test_a_server_without_the_routes_of_an_engine_is_told_at_once(capsys, caplog):
    async with serving(Routed()) as url:
        assert await asyncio.to_thread(run, ChatEnv, "process", "--openai.base_url", url) == 2
        said = capsys.readouterr().err
        assert f"--openai.base_url {url}/v1: no engine has its routes there" in said
        assert "correct it, as in http://localhost:9001/v1 (--openai.health_check false goes on" in said
        assert "a rollout failed" not in caplog.text


async def test_the_base_of_an_engine_that_was_given_another_path_is_found(capsys):
    async with serving(StubEngine()) as url:
        assert await asyncio.to_thread(run, ChatEnv, "process", "--openai.base_url", f"{url}/v2") == 2
        assert f"--openai.base_url {url}/v2: no engine has its routes there" in (said := capsys.readouterr().err)
        assert said.endswith(f"give {url}/v1\n")


async def test_the_trajectory_server_in_the_place_of_the_engine_is_told_at_once(capsys, caplog):
    async with api_serving(create_app()) as url:
        for given in (url, f"{url}/v1"):
            assert await asyncio.to_thread(run, ChatEnv, "process", "--openai.base_url", given) == 2
            said = capsys.readouterr().err
            assert f"--openai.base_url {url}/v1: the trajectory server (run-api) is there" in said
            assert "give the URL of the engine, such as http://localhost:9001/v1" in said
    assert "a rollout failed" not in caplog.text


def test_a_tokenizer_that_is_not_found_is_an_error_that_names_the_flag(tmp_path, monkeypatch, capsys):
    class Tokenizing(CountingEnv):
        async def collect_trajectory(self, item):
            self.tokenizer.encode("x")
            return await super().collect_trajectory(item)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(Tokenizing, "process", "--env.tokenizer_name", str(tmp_path / "absent")) == 2
    assert "--env.tokenizer_name" in capsys.readouterr().err
