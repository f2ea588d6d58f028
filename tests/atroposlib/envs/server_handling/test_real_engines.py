"""The clients against engines that run a real model: the embedded engine always, a real vLLM by ``pytest -m vllm``."""

from __future__ import annotations

import pytest

from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError, ContextFull, EngineRefused
from tests.atroposlib.envs.server_handling.proxies import serving_proxy
from tests.atroposlib.envs.server_handling.real_engines import (
    MAX_MODEL_LEN,
    POLICY,
    WITH_VLLM,
    serving_embedded,
    with_vllm,
)
from tests.atroposlib.envs.server_handling.tools import TOOLS

PROMPT = [5, 6, 7, 8, 9]
CLOSE = 1e-3
"""Two logprobs nearer than this may change places between engines."""


@pytest.fixture(scope="module")
def embedded():
    with serving_embedded() as url:
        yield url


@pytest.fixture(scope="module", params=["embedded", pytest.param("vllm", marks=WITH_VLLM)])
def url(request):
    """Each engine in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


def manager_of(url, **settings):
    return ServerManager(APIServerConfig(base_url=url, **{"server_type": "vllm", "max_retries": 0, **settings}))


@pytest.fixture
async def manager(url):
    async with manager_of(url) as manager:
        yield manager


async def test_it_is_found_ready_and_token_exact_under_its_own_name(manager):
    await manager.wait_until_ready()
    facts = await manager.probe()
    assert (facts.token_exact, facts.reason, facts.model_name) == (True, "", "policy")
    assert (facts.max_model_len, facts.model_root) == (MAX_MODEL_LEN, str(POLICY))


async def test_ids_come_back_with_a_logprob_each(manager):
    prompt, ids, logprobs, reasons = await manager.tokens_and_logprobs_completion(
        input_ids=PROMPT, max_tokens=7, n=3, temperature=1.0, ignore_eos=True
    )
    assert prompt == PROMPT
    assert [len(each) for each in ids] == [len(each) for each in logprobs] == [7, 7, 7]
    assert all(logprob <= 0 for each in logprobs for logprob in each)
    assert reasons == ["length"] * 3


async def test_what_was_sampled_is_scored_alike_when_it_is_given(manager):
    _, (ids,), (sampled,), _ = await manager.tokens_and_logprobs_completion(
        input_ids=PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True
    )
    scored = await manager.get_logprobs(input_ids=[*PROMPT, *ids])
    assert scored["prompt_tokens"] == [*PROMPT, *ids]
    assert [position[0] for position in scored["prompt_topk_token_ids"][len(PROMPT) :]] == ids
    given = [position[0] for position in scored["prompt_topk_logprobs"][len(PROMPT) :]]
    assert given == pytest.approx(sampled, abs=1e-3)


async def test_more_choices_than_one_request_may_have_are_asked_for_in_portions(manager):
    manager.max_n_completions = 2
    answer = await manager.chat_completion(messages=[{"role": "user", "content": "hi"}], n=5, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4]


async def test_a_stop_text_ends_an_answer(manager):
    free = await manager.completion(prompt=PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True)
    stop = free.choices[0].text[2:4]
    answer = await manager.completion(prompt=PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert stop not in answer.choices[0].text


async def test_a_prompt_longer_than_the_engine_is_refused_once(manager, tokenizer):
    with pytest.raises(EngineRefused):
        await manager.tokens_and_logprobs_completion(input_ids=[5] * (MAX_MODEL_LEN + 5), max_tokens=1)
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        with pytest.raises(ContextFull):
            await managed.chat_completion(messages=[{"role": "user", "content": "x y " * MAX_MODEL_LEN}])


async def test_another_model_than_it_serves_is_refused_with_the_list(url):
    async with manager_of(url, model_name="other") as manager:
        with pytest.raises(ConfigError, match="policy"):
            await manager.probe()


async def episode(manager, tokenizer, turns=4):
    """A greedy rollout with a tool; the ids of its sequence and which of them were sampled."""
    messages = [
        {"role": "system", "content": "You use the terminal."},
        {"role": "user", "content": "Write the word blue into the file out.txt"},
    ]
    async with manager.managed_server(tokenizer=tokenizer, tool_call_parser="hermes") as managed:
        for turn in range(turns):
            answer = await managed.chat_completion(messages=messages, tools=TOOLS, temperature=0.0, max_tokens=40)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            calls = message.tool_calls or ()
            messages += [{"role": "tool", "tool_call_id": call.id, "content": f"ok {turn}"} for call in calls]
            messages += [] if calls else [{"role": "user", "content": f"Go on, step {turn}."}]
        nodes = managed.get_state()["nodes"]
        assert managed.certificate(nodes[0])["engine"] == "vllm"
    (node,) = nodes
    return node


async def test_an_episode_with_a_tool_is_one_sequence_whose_logprobs_hold(manager, tokenizer):
    node = await episode(manager, tokenizer)
    assert node.metadata["turns"] == 4
    assert node.full_text == tokenizer.decode(node.tokens)
    scored = await manager.get_logprobs(input_ids=node.tokens)
    for position, mask in enumerate(node.masked_tokens):
        if mask != -100:  # greedy: the likeliest id
            assert scored["prompt_topk_logprobs"][position][0] == pytest.approx(node.logprobs[position], abs=2e-3)


async def test_a_program_is_recorded_through_the_proxy(manager, tokenizer):
    async with serving_proxy(manager, tokenizer) as proxy_url:
        through = ServerManager([], proxy_url=proxy_url, use_proxy=True)
        node = await episode(through, tokenizer)
    itself = await episode(manager, tokenizer)
    assert node.tokens == itself.tokens
    assert node.logprobs == pytest.approx(itself.logprobs, abs=CLOSE)


@with_vllm
async def test_the_same_episode_gives_the_same_ids_on_both_engines(embedded, vllm, tokenizer):
    async with manager_of(embedded) as ours, manager_of(vllm) as theirs:
        one, other = await episode(ours, tokenizer), await episode(theirs, tokenizer)
        pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
        first = next((at for at, (a, b) in pairs if a != b), None)
        if first is not None:
            answer = await ours.completion(prompt=one.tokens[:first], max_tokens=1, temperature=0.0, logprobs=2)
            best, second = sorted(answer.choices[0].logprobs.top_logprobs[0].values(), reverse=True)[:2]
            assert best - second < CLOSE
            return
    assert one.tokens == other.tokens
    assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
