"""What a real vLLM answered is what the stub answers in its place, and what the client reads."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import EngineRefused
from scripts import record_vllm
from tests.atroposlib.envs.server_handling.real_engines import with_vllm
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving
from tests.atroposlib.envs.server_handling.vllm_recording import (
    Exchange,
    ReplayedEngine,
    ask,
    form,
    load,
    normalised,
)

RECORDING = load()
EXCHANGES = RECORDING.exchanges
TEXTS = [name for name, each in EXCHANGES.items() if each.path == "/v1/completions" and each.status == 200]
CHATS = [name for name, each in EXCHANGES.items() if each.path == "/v1/chat/completions" and each.status == 200]
IN_IDS = [name for name in TEXTS if EXCHANGES[name].body.keys() >= {"return_token_ids", "logprobs"}]
REFUSED = [name for name, each in EXCHANGES.items() if each.path.startswith("/v1") and each.status >= 400]
RECORD_ANEW = (
    "vLLM answers otherwise than in vllm_recording.json; record anew, and correct the stub where its tests say so"
)


@pytest.fixture
async def stub():
    async with serving(StubEngine([RECORDING.model], max_model_len=RECORDING.max_model_len)) as url:
        yield url


def manager_of(url, **settings):
    return ServerManager(APIServerConfig(base_url=url, server_type="vllm", max_retries=0, **settings))


@pytest.fixture
async def replayed():
    """A client of the recording. It gets an answer only where it sends, to the letter, a request that was recorded."""
    async with serving(ReplayedEngine(RECORDING)) as url, manager_of(url) as manager:
        yield manager


# the recording itself


def test_it_holds_the_answers_to_all_that_the_script_asks():
    recorded = {name: Exchange(each.method, each.path, each.body) for name, each in EXCHANGES.items()}
    assert recorded == record_vllm.requests()


def test_it_tells_nothing_of_the_machine_and_the_moment():
    assert [name for name, each in EXCHANGES.items() if normalised(each) != each] == []


# the stub in the place of vLLM


@pytest.mark.parametrize("name", EXCHANGES)
async def test_the_stub_answers_in_the_form_of_vllm(stub, name):
    assert form(await asyncio.to_thread(ask, stub, EXCHANGES[name])) == form(EXCHANGES[name])


def check_counts(exchange):
    """Usage, numbers of choices and ids are those that the request asks for."""
    body, answer = exchange.body, exchange.answer
    choices, usage = answer["choices"], answer["usage"]
    assert [choice["index"] for choice in choices] == list(range(body.get("n", 1)))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] <= body["max_tokens"] * len(choices)
    for choice in choices:
        if choice["finish_reason"] == "length":
            assert usage["completion_tokens"] == body["max_tokens"] * len(choices)
        if choice["token_ids"] is not None:
            assert len(choice["token_ids"]) * len(choices) == usage["completion_tokens"]


def check_ids(exchange):
    """Ids are the prompt's and those of the tokens whose logprobs are told."""
    body = exchange.body
    for choice in exchange.answer["choices"]:
        prompt, sampled, told = choice["prompt_token_ids"], choice["token_ids"], choice["logprobs"]
        assert len(prompt) == exchange.answer["usage"]["prompt_tokens"]
        assert isinstance(body["prompt"], str) or prompt == body["prompt"]
        count = len(sampled) + (len(prompt) if body.get("echo") else 0)
        assert [len(told[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [count] * 4
        pairs = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
        assert all(top is None or top[token] == logprob for token, logprob, top in pairs)
        assert choice["text"] in "".join(told["tokens"][-len(sampled) :])


@pytest.mark.parametrize("name", [*TEXTS, *CHATS])
async def test_vllm_and_the_stub_count_alike(stub, name):
    check_counts(EXCHANGES[name])
    check_counts(await asyncio.to_thread(ask, stub, EXCHANGES[name]))


@pytest.mark.parametrize("name", IN_IDS)
async def test_vllm_and_the_stub_compute_ids_from_the_request(stub, name):
    check_ids(EXCHANGES[name])
    check_ids(await asyncio.to_thread(ask, stub, EXCHANGES[name]))


# the client reads what vLLM answered


async def test_the_client_finds_vllm_ready_and_token_exact_and_asks_for_the_model_it_lists(replayed):
    await replayed.wait_until_ready()
    facts = await replayed.probe()
    assert (facts.token_exact, facts.reason, facts.model_name) == (True, "", RECORDING.model)
    assert (facts.max_model_len, facts.model_root) == (RECORDING.max_model_len, "tiny_policy")


def arguments_of(name, *but):
    return {key: value for key, value in EXCHANGES[name].body.items() if key not in ("model", *but)}


@pytest.mark.parametrize("name", [name for name in IN_IDS if "echo" not in EXCHANGES[name].body])
async def test_the_client_reads_the_ids_and_logprobs_that_vllm_sampled(replayed, name):
    answer = await replayed.generate(**arguments_of(name, "logprobs", "return_token_ids"))
    choices = EXCHANGES[name].answer["choices"]
    assert answer.prompt_ids == choices[0]["prompt_token_ids"]
    assert answer.prompt_ids_from_engine
    assert [each.ids for each in answer.completions] == [choice["token_ids"] for choice in choices]
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices]
    assert [each.logprobs for each in answer.completions] == logprobs
    assert [each.finish_reason for each in answer.completions] == [choice["finish_reason"] for choice in choices]
    assert [each.policy_version for each in answer.completions] == [None] * len(choices)


async def test_the_client_reads_the_scores_of_a_given_text(replayed):
    asked, told = EXCHANGES["scores"].body, EXCHANGES["scores"].answer["choices"][0]["prompt_logprobs"]
    scores = await replayed.get_logprobs(input_ids=asked["prompt"], top_k=asked["prompt_logprobs"])
    assert scores["prompt_tokens"] == asked["prompt"]
    assert (scores["prompt_topk_token_ids"][0], scores["prompt_topk_logprobs"][0]) == ([], [])
    for position, entries in enumerate(told[1:], start=1):
        ranks = {entry["rank"]: (int(number), entry["logprob"]) for number, entry in entries.items()}
        best = [ranks[1], ranks[2]]
        assert scores["prompt_topk_token_ids"][position] == [number for number, _ in best]
        assert scores["prompt_topk_logprobs"][position] == [logprob for _, logprob in best]


@pytest.mark.parametrize("name", TEXTS)
async def test_the_client_reads_texts(replayed, name):
    answer = await replayed.completion(**arguments_of(name))
    told = EXCHANGES[name].answer
    for read, choice in zip(answer.choices, told["choices"], strict=True):
        assert (read.text, read.finish_reason) == (choice["text"], choice["finish_reason"])
        assert (read.logprobs and read.logprobs.model_dump()) == choice["logprobs"]
    assert answer.usage.completion_tokens == told["usage"]["completion_tokens"]


@pytest.mark.parametrize("name", CHATS)
async def test_the_client_reads_chats_with_their_tool_calls(replayed, name):
    answer = await replayed.chat_completion(**arguments_of(name))
    for read, choice in zip(answer.choices, EXCHANGES[name].answer["choices"], strict=True):
        message = choice["message"]
        assert (read.message.content, read.finish_reason) == (message["content"], choice["finish_reason"])
        calls = [call.model_dump() for call in read.message.tool_calls or ()]
        assert calls == message.get("tool_calls", [])
        assert (read.logprobs and read.logprobs.model_dump(exclude_unset=True)) == choice["logprobs"]
        assert read.token_ids == choice["token_ids"]


@pytest.mark.parametrize("name", REFUSED)
async def test_the_client_tells_a_refusal_in_the_words_of_vllm(replayed, name):
    recorded = EXCHANGES[name]
    replayed.servers[0].config.model_name = recorded.body["model"]
    if "messages" in recorded.body:
        asked = replayed.chat_completion(**arguments_of(name))
    elif "return_token_ids" in recorded.body:
        asked = replayed.generate(**arguments_of(name, "logprobs", "return_token_ids"))
    else:
        asked = replayed.completion(**arguments_of(name))
    with pytest.raises(EngineRefused) as refused:
        await asked
    assert refused.value.status == recorded.status
    assert str(refused.value).endswith(f" answered {recorded.status}: {recorded.answer['error']['message']}")


# the recording and a real vLLM


@with_vllm
def test_vllm_still_answers_as_it_was_recorded(vllm):
    now = record_vllm.record(vllm)
    before = {name: form(each) for name, each in EXCHANGES.items()}
    assert {name: form(each) for name, each in now.exchanges.items()} == before, (
        f"{RECORD_ANEW} (recorded: {RECORDING.version}, here: {now.version})"
    )
    for name in [*TEXTS, *CHATS]:
        check_counts(now.exchanges[name])
    for name in IN_IDS:
        check_ids(now.exchanges[name])
