"""Whether a tokenizer is the engine's: wrong ones are refused, right ones never."""

import pytest

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.known_text import KNOWN_TEXT
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError
from tests.atroposlib.envs.server_handling import real_engines
from tests.atroposlib.envs.server_handling.real_tokenizers import tokenizer_with
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving
from tests.byte_tokenizer import make_tokenizer

BOS, EOS = 257, 258


async def opens(tokenizer, change=lambda answer: None, failures=()):
    """Open a rollout over a stub that reads texts as bytes; how often it was asked for something."""
    engine = StubEngine()
    engine.change = change
    async with serving(engine) as url, ServerManager(APIServerConfig(base_url=url, max_retries=0)) as manager:
        await manager.probe()
        engine.failures = list(failures)
        for _ in range(2):
            async with manager.managed_server(tokenizer=tokenizer):
                pass
    return len(engine.bodies("/v1/completions"))


def echo(ids):
    """Let the engine say that it made these ids of the text."""

    def change(answer):
        if len(answer["choices"][0]["prompt_token_ids"]) > 1:
            answer["choices"][0]["prompt_token_ids"] = ids

    return change


def drop_echo(answer):
    if answer["choices"][0]["prompt_token_ids"] != [1]:
        del answer["choices"][0]["prompt_token_ids"]


BYTES = ByteTokenizer().encode(KNOWN_TEXT)


@pytest.mark.parametrize("ids", [[BOS, *BYTES], [*BYTES, EOS], [BOS, *BYTES, EOS]])
async def test_marks_that_the_engine_puts_around_a_text_are_no_difference(ids):
    assert await opens(ByteTokenizer(), echo(ids)) == 2


async def test_a_text_that_is_parted_elsewhere_is_no_difference():
    tokenizer = tokenizer_with("")
    parted = [number for letter in KNOWN_TEXT for number in tokenizer.encode(letter, add_special_tokens=False)]
    assert parted != tokenizer.encode(KNOWN_TEXT, add_special_tokens=False)
    assert await opens(tokenizer, echo(parted)) == 2


@pytest.mark.parametrize("change", [drop_echo, echo([]), echo(None), echo("text"), echo([None, 7])])
async def test_an_engine_that_tells_no_ids_of_a_text_is_believed(change):
    assert await opens(make_tokenizer(), change) == 2


@pytest.mark.parametrize("failure", [400, 404, 422, 500, None])
async def test_an_engine_that_takes_no_text_is_believed_and_not_asked_again(failure):
    assert await opens(make_tokenizer(), failures=[failure]) == 2


@pytest.mark.parametrize("ids", [[*BYTES[:-1], 33], BYTES[1:], [BOS, BOS, BOS, *BYTES[5:]], [70_000, *BYTES[1:]]])
async def test_other_ids_are_a_difference(ids):
    with pytest.raises(ConfigError, match=r"--env\.tokenizer_name 'bytes'"):
        await opens(ByteTokenizer(), echo(ids))


async def test_a_tokenizer_of_the_same_size_with_other_ids_is_refused():
    tokenizer = make_tokenizer()
    assert len(tokenizer) == len(ByteTokenizer())
    with pytest.raises(ConfigError, match=r"is not the tokenizer of the model at .* \(stub\)"):
        await opens(tokenizer)


async def test_the_embedded_engine_tells_its_tokenizer_from_another():
    from transformers import AutoTokenizer

    with real_engines.serving_embedded() as url:
        async with ServerManager(APIServerConfig(base_url=url)) as manager:
            await manager.check_tokenizer(AutoTokenizer.from_pretrained(real_engines.POLICY))
            with pytest.raises(ConfigError, match="tiny_policy"):
                await manager.check_tokenizer(ByteTokenizer())
