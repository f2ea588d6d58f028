import pytest

from atroposlib import hub
from atroposlib.errors import ConfigError, EngineRefused
from environments.dataset_environment.workbench.transformers_server import TransformersServer

CHAT = [{"role": "user", "content": "What is 1 plus 1?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.trainer.tiny_model import save_policy

    return TransformersServer.load(str(save_policy(tmp_path_factory.mktemp("model"))))


async def answer(server, messages=CHAT, **settings):
    return await server.chat_completion(messages=messages, **{"max_tokens": 8, "temperature": 0.0} | settings)


async def test_a_model_in_this_process_answers_chats(server):
    first, again = await answer(server), await answer(server)
    assert first.choices[0].message.content == again.choices[0].message.content
    assert 0 < first.usage.completion_tokens <= 8
    assert first.choices[0].finish_reason == ("length" if first.usage.completion_tokens == 8 else "stop")


async def test_sampling_differs_and_gives_as_many_choices_as_were_asked_for(server):
    sampled = await answer(server, temperature=1.0, n=3, extra_body={"top_p": 0.95})
    assert len({choice.message.content for choice in sampled.choices}) == 3


async def test_what_a_configuration_says_of_sampling_has_its_effect(server):
    async def said(**settings):
        return (await answer(server, **settings)).choices[0].message.content

    greedy = await said()
    assert await said(temperature=1.0, extra_body={"min_p": 1.0}) == greedy
    assert await said(temperature=1.0, extra_body={"top_k": 1}) == greedy
    assert await said(extra_body={"repetition_penalty": 100.0}) != await said(max_tokens=8)
    seeded = [await said(temperature=1.0, extra_body={"seed": seed, "presence_penalty": 0}) for seed in (3, 3, 4)]
    assert seeded[0] == seeded[1] != seeded[2]


async def test_an_answer_ends_before_a_text_that_stops_it(server):
    whole = (await answer(server, max_tokens=12)).choices[0].message.content
    stop = whole[2:4]
    stopped = (await answer(server, max_tokens=12, extra_body={"stop": stop})).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (whole.partition(stop)[0], "stop")


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "guided_regex"])
async def test_sampling_that_would_have_no_effect_is_refused_by_name(server, name):
    with pytest.raises(EngineRefused, match=f"{name} has no effect"):
        await answer(server, extra_body={name: 0.5})


async def test_a_begun_answer_is_gone_on_from(server):
    begun = [*CHAT, {"role": "assistant", "content": "<think>"}]
    assert (await answer(server, begun)).usage.prompt_tokens < (
        await answer(server, [*begun, *CHAT])
    ).usage.prompt_tokens
    rendered = server.tokenizer.decode(server._render(begun, None, {})["input_ids"][0])
    assert rendered.endswith("<|im_start|>assistant\n<think>")


def test_a_model_that_is_not_there_is_an_error_at_once(here, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "REACH_S", 2.0)
    with pytest.raises(ConfigError, match="hf download nobody/nothing --local-dir nobody/nothing"):
        TransformersServer.load("nobody/nothing")
