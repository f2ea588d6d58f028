"""The client of engines over HTTP, against a real server."""

import asyncio
import logging

import pytest
from aiohttp import web

from atroposlib.envs.server_handling import server_baseline
from atroposlib.envs.server_handling.generation import PromptIds
from atroposlib.envs.server_handling.openai_server import APIServerConfig, OpenAIServer, ReasoningConfig
from atroposlib.envs.server_handling.token_graph import Node
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable, NotTokenExact
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, echo, logprob, serving

HI = [{"role": "user", "content": "hi"}]


def prompt_of(*stretches: list[int]) -> PromptIds:
    return PromptIds([Node(ids, "") for ids in stretches], sum(map(len, stretches)))


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(server_baseline, "FIRST_DELAY_S", 0.001)


@pytest.fixture
async def engine():
    stub = StubEngine()
    async with serving(stub):
        yield stub


@pytest.fixture
async def server(engine):
    client = OpenAIServer(APIServerConfig(base_url=engine.url, api_key="secret-key"))
    yield client
    await client.close()


async def test_a_chat_answer_reads_like_one_of_the_openai_package(server, engine):
    engine.change = lambda answer: answer["choices"][0]["message"].update(reasoning_content="r")
    answer = await server.chat_completion(messages=HI, max_tokens=12, temperature=0.5)
    message = answer.choices[0].message
    assert (message.content, message.tool_calls, message.reasoning_content) == ("you said hi", None, "r")
    assert message.model_extra == {"reasoning": None, "reasoning_content": "r"}
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 12)


async def test_an_answer_outside_the_schema_is_still_readable(server, engine):
    engine.change = lambda answer: answer["choices"][0].update(finish_reason="abort", index=None)
    answer = await server.chat_completion(messages=HI)
    assert answer.choices[0].finish_reason == "abort"
    assert answer.choices[0].message.content == "you said hi"


async def test_the_request_carries_the_arguments_the_extra_body_and_the_key(server, engine):
    await server.chat_completion(messages=HI, temperature=0.5, stop=None, extra_body={"top_k": 3}, split="eval")
    body = engine.bodies("/v1/chat/completions")[0]
    assert body == {"messages": HI, "temperature": 0.5, "top_k": 3, "model": "stub"}
    assert engine.headers[-1]["authorization"] == "Bearer secret-key"


async def test_messages_may_be_answers_of_the_openai_package_and_hold_lone_surrogates(server, engine):
    said = (await server.chat_completion(messages=HI)).choices[0].message
    await server.chat_completion(messages=[*HI, said, {"role": "user", "content": "bad \ud800 text"}])
    sent = engine.bodies("/v1/chat/completions")[-1]["messages"]
    assert sent[1]["content"] == "you said hi"
    assert sent[2]["content"] == "bad ? text"


async def test_the_model_that_the_engine_lists_is_asked_for_once(server, engine):
    await asyncio.gather(*(server.chat_completion(messages=HI) for _ in range(5)))
    assert server.config.model_name == "stub"
    assert engine.paths().count("/v1/models") == 1


async def test_an_engine_that_lists_no_model_is_an_error():
    async with serving(StubEngine(models=[])) as url:
        client = OpenAIServer(APIServerConfig(base_url=url))
        with pytest.raises(ConfigError, match=rf"{url}/v1 serves no model"):
            await client.chat_completion(messages=HI)
        await client.close()


SERVED = [(["alpha", "beta"], "it serves alpha, beta"), (["other"], "it serves other")]


@pytest.mark.parametrize(("listed", "said"), SERVED)
async def test_a_named_model_that_is_not_served_is_an_error_that_lists_those_that_are(listed, said):
    engine = StubEngine(models=listed)
    engine.refusals = {"/v1/completions": "The model `absent` does not exist."}
    async with serving(engine) as url:
        client = OpenAIServer(APIServerConfig(base_url=url, model_name="absent"))
        with pytest.raises(ConfigError, match=f"--openai.model_name 'absent'.*{said}"):
            await client.probe()
        await client.close()


async def test_an_alias_that_is_served_without_being_listed_is_believed():
    async with serving(StubEngine(models=["vendor/model"], unlisted=["vendor/model:fast"])) as url:
        client = OpenAIServer(APIServerConfig(base_url=url, model_name="vendor/model:fast"))
        assert (await client.probe()).token_exact
        await client.close()


async def test_several_models_are_listed_in_the_error():
    engine = StubEngine(models=["alpha", "beta"])
    async with serving(engine) as url:
        server = OpenAIServer(APIServerConfig(base_url=url))
        with pytest.raises(ConfigError, match=r"--openai\.model_name: alpha, beta"):
            await server.chat_completion(messages=HI)
        await server.close()


class RootedEngine(StubEngine):
    """Lists each model with the folder it was loaded from, as vLLM does."""

    def __init__(self, roots: dict[str, str | None]) -> None:
        super().__init__(models=list(roots))
        self.roots = roots

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name, "root": self.roots[name]} for name in self.models]})


async def test_the_first_of_several_names_of_one_model_is_taken():
    async with serving(RootedEngine({"alpha": "/models/one", "vendor/alpha": "/models/one"})) as url:
        server = OpenAIServer(APIServerConfig(base_url=url))
        assert (await server.probe()).model_name == "alpha"
        await server.close()


@pytest.mark.parametrize("roots", [(None, None), ("", ""), ("/models/one", "/models/adapter"), ("/models/one", None)])
async def test_names_are_not_taken_for_one_models_where_their_roots_do_not_say_so(roots):
    async with serving(RootedEngine(dict(zip(("alpha", "beta"), roots, strict=True)))) as url:
        server = OpenAIServer(APIServerConfig(base_url=url))
        with pytest.raises(ConfigError, match=r"serves 2 models; choose with --openai\.model_name: alpha, beta"):
            await server.probe()
        await server.close()


@pytest.mark.parametrize("failure", [429, 500, 503, None])
async def test_a_failure_that_may_pass_is_tried_again(server, engine, failure):
    server.config.model_name = "stub"
    engine.failures = [failure, failure]
    answer = await server.chat_completion(messages=HI)
    assert answer.choices[0].message.content == "you said hi"
    assert len(engine.requests) == 3
    assert (await server.wandb_metrics())["server/server_average_num_attempts"] == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refusal_is_not_tried_again_and_keeps_the_engines_words(server, engine, status):
    server.config.model_name = "stub"
    engine.failures = [status]
    with pytest.raises(EngineRefused, match=f"planned failure {status}") as refused:
        await server.chat_completion(messages=HI)
    assert refused.value.status == status
    assert len(engine.requests) == 1


async def test_after_the_last_attempt_the_cause_is_told(server, engine):
    server.config.model_name, server.config.max_retries = "stub", 2
    engine.failures = [500, 500, 503]
    with pytest.raises(EngineUnavailable, match=r"planned failure 503 \(3 attempts\)") as failed:
        await server.chat_completion(messages=HI)
    assert "503" in str(failed.value.__cause__)
    assert not server.server_healthy


async def test_an_engine_that_is_too_slow_is_not_asked_again(server, engine):
    server.config.model_name = "stub"
    engine.hold = asyncio.Event()
    with pytest.raises(EngineUnavailable, match="did not answer within"):
        await server.chat_completion(messages=HI, timeout=0.05)
    assert len(engine.requests) == 1
    engine.hold.set()


async def test_an_engine_that_ignores_n_is_asked_for_the_rest():
    engine = StubEngine(max_n=1)
    async with serving(engine) as url:
        server = OpenAIServer(APIServerConfig(base_url=url, model_name="stub"))
        first = await server.chat_completion(messages=HI, n=3)
        second = await server.chat_completion(messages=HI, n=2)
        await server.close()
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert first.usage.completion_tokens == 3 * len("you said hi.")
    assert len(second.choices) == 2
    assert len(engine.requests) == 3 + 2


async def test_one_choice_is_one_request_where_n_is_ignored(server, engine):
    server.config.model_name, server.config.n_kwarg_is_ignored = "stub", True
    await server.chat_completion(messages=HI, n=1)
    assert len(engine.requests) == 1


async def test_no_more_requests_run_than_the_config_allows(engine):
    server = OpenAIServer(APIServerConfig(base_url=engine.url, model_name="stub", num_max_requests_at_once=3))
    await asyncio.gather(*(server.chat_completion(messages=HI) for _ in range(20)))
    assert engine.most_in_flight <= 3
    assert len(engine.requests) == 20
    await server.close()


async def test_evaluation_has_slots_of_its_own(engine):
    engine.hold = asyncio.Event()
    server = OpenAIServer(
        APIServerConfig(base_url=engine.url, model_name="stub", num_max_requests_at_once=1, num_requests_for_eval=2)
    )
    async with asyncio.TaskGroup() as group:
        for split in ("train", "train", "eval", "eval", "eval"):
            group.create_task(server.chat_completion(messages=HI, split=split))
        while engine.in_flight < 3:
            await asyncio.sleep(0.001)
        assert (server.sem.in_use, server.eval_sem.in_use) == (1, 2)
        engine.hold.set()
    assert len(server.eval_request_timings) == 3
    await server.close()


async def test_ids_go_in_and_ids_and_logprobs_come_out(server, engine):
    prompt = list(b"what is this")
    expected = echo(prompt, 100)
    answer = await server.tokens_and_logprobs_completion(input_ids=prompt, max_tokens=100, n=2)
    assert answer == (
        prompt,
        [expected] * 2,
        [[logprob(i, token) for i, token in enumerate(expected)]] * 2,
        ["stop"] * 2,
    )
    sent = engine.bodies("/v1/completions")[0]
    assert (sent["prompt"], sent["logprobs"], sent["return_token_ids"]) == (prompt, 0, True)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
async def test_a_prompt_that_was_written_before_is_sent_as_it_is_and_its_echo_compared(server, engine, separators):
    engine.separators = separators
    prompt = prompt_of([65], [66, 67])
    answer = await server.generate(input_ids=prompt, max_tokens=9, n=2)
    assert engine.bodies("/v1/completions")[0]["prompt"] == [65, 66, 67]
    assert answer.prompt_ids == prompt
    assert answer.prompt_ids_from_engine
    assert [completion.ids for completion in answer.completions] == [echo(prompt, 9)] * 2


async def test_an_echo_of_other_ids_is_told(server, engine):
    engine.change = lambda answer: answer["choices"][0].update(prompt_token_ids=[1, 65, 66])
    answer = await server.generate(input_ids=prompt_of([65], [66]), max_tokens=9)
    assert answer.prompt_ids == [1, 65, 66]


async def test_the_weights_that_sampled_are_told(server, engine):
    engine.weight_version = "step-3"
    answer = await server.generate(input_ids=[65, 66], max_tokens=4)
    assert answer.completions[0].policy_version == "step-3"


async def test_the_probe_finds_a_token_exact_engine_with_one_request(server, engine):
    facts = await server.probe()
    assert await server.probe() is facts
    assert (facts.token_exact, facts.reason, facts.model_name, facts.max_model_len) == (True, "", "stub", 4096)
    assert [body["max_tokens"] for body in engine.bodies("/v1/completions")] == [1]


async def test_the_probe_says_why_an_engine_is_not_token_exact():
    engine = StubEngine(gives_ids=False)
    async with serving(engine) as url:
        server = OpenAIServer(APIServerConfig(base_url=url))
        facts = await server.probe()
        assert not facts.token_exact
        assert "without the token ids" in facts.reason
        with pytest.raises(NotTokenExact, match=r"trainer\.serve"):
            await server.tokens_and_logprobs_completion(input_ids=[1])
        await server.close()


async def test_the_probe_does_not_take_a_wrong_key_for_an_inexact_engine(server, engine):
    server.config.model_name = "stub"
    engine.failures = [401]
    with pytest.raises(EngineRefused, match="401"):
        await server.probe()


async def test_an_engine_that_is_not_there_yet_is_waited_for(unused_tcp_port):
    server = OpenAIServer(APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", wait_s=30))
    waiting = asyncio.create_task(server.wait_until_ready())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    async with serving(StubEngine(), unused_tcp_port):
        await waiting
    assert server.server_healthy
    await server.close()


async def test_waiting_ends_and_names_the_url(unused_tcp_port):
    server = OpenAIServer(APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", wait_s=0.05))
    with pytest.raises(EngineUnavailable, match=rf"127\.0\.0\.1:{unused_tcp_port}/v1 within 0.05 s"):
        await server.wait_until_ready()
    await server.close()


async def test_waiting_generates_nothing(server, engine):
    await server.wait_until_ready()
    assert set(engine.paths()) == {"/v1/models"}


async def test_no_health_check_means_no_request(engine):
    server = OpenAIServer(APIServerConfig(base_url=engine.url, health_check=False))
    await server.wait_until_ready()
    assert engine.requests == []


async def test_timings_are_bounded(server):
    server.request_timings.extend(range(5000))
    assert len(server.request_timings) == server.config.rolling_buffer_length
    metrics = await server.wandb_metrics({}, "engine")
    assert metrics["server/engine_request_time_99p"] == 4989
    assert "server/engine_average_num_attempts" not in metrics


async def test_the_key_appears_in_no_message_and_no_log(server, engine, caplog):
    caplog.set_level(logging.DEBUG)
    server.config.model_name = "stub"
    engine.failures = [503, 400]
    with pytest.raises(EngineRefused) as refused:
        await server.chat_completion(messages=HI)
    assert "secret-key" not in f"{refused.value} {server.config!r} {server.config} {caplog.text}"


async def test_reasoning_settings_are_sent_with_every_chat(engine):
    server = OpenAIServer(
        APIServerConfig(base_url=engine.url, model_name="stub"), reasoning_config=ReasoningConfig(effort="low")
    )
    await server.chat_completion(messages=HI, extra_body={"top_k": 3})
    body = engine.bodies("/v1/chat/completions")[0]
    assert (body["reasoning"], body["top_k"]) == ({"enabled": True, "effort": "low"}, 3)
    await server.close()


async def test_an_answer_without_choices_is_no_answer(server, engine):
    engine.change = lambda answer: answer.update(choices=[])
    with pytest.raises(EngineUnavailable, match="without choices"):
        await server.chat_completion(messages=HI)


async def test_an_engine_that_fails_again_and_again_is_said_once_until_it_answers(server, engine, caplog):
    for _ in range(2):
        engine.failures = [500, 500]
        await server.generate(input_ids=[65], max_tokens=2)
    assert caplog.text.count("trying again") == 2
