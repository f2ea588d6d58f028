"""The fake engine that tests and examples use."""

import pytest

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_harness import ServerHarness, create_chat_completion, create_completion
from atroposlib.errors import EngineRefused, EngineUnavailable

HI = [{"role": "user", "content": "hi"}]
EOS = ByteTokenizer.eos_token_id


async def test_replies_come_in_order_and_then_the_engine_refuses():
    server = ScriptedServer(["one", {"content": "two", "finish_reason": "length"}])
    first = await server.chat_completion(messages=HI)
    second = await server.chat_completion(messages=HI)
    assert first.choices[0].message.content == "one"
    assert second.choices[0].finish_reason == "length"
    with pytest.raises(EngineRefused, match="no reply left for request 3"):
        await server.chat_completion(messages=HI)


async def test_a_reply_may_be_an_error():
    server = ScriptedServer([EngineUnavailable("gone"), "back"])
    with pytest.raises(EngineUnavailable, match="gone"):
        await server.chat_completion(messages=HI)
    assert (await server.chat_completion(messages=HI)).choices[0].message.content == "back"


async def test_a_function_sees_the_request_and_answers_it():
    server = ScriptedServer(lambda request: f"{request.kind}: {request.text}")
    assert (await server.chat_completion(messages=HI)).choices[0].message.content == "chat: hi"
    assert (await server.completion(prompt="once")).choices[0].text == "completion: once"
    assert server.requests[0].messages == HI


async def test_tool_calls_are_objects_in_a_chat_and_text_in_tokens():
    call = {"content": "look", "tool_calls": [{"name": "terminal", "arguments": {"command": "ls"}}]}
    server = ScriptedServer([call, call])
    choice = (await server.chat_completion(messages=HI)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"command": "ls"}'
    _, (ids,), _, _ = await server.tokens_and_logprobs_completion(input_ids=[65])
    assert ByteTokenizer().decode(ids) == (
        'look\n<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
    )


async def test_tokens_end_in_the_end_of_turn_or_at_the_limit():
    server = ScriptedServer(default="abcdef")
    _, ids, logprobs, reasons = await server.tokens_and_logprobs_completion(input_ids=[65], max_tokens=100)
    assert (ids, reasons) == ([[*b"abcdef", EOS]], ["stop"])
    assert len(logprobs[0]) == 7
    _, ids, _, reasons = await server.tokens_and_logprobs_completion(input_ids=[65], max_tokens=3)
    assert (ids, reasons) == ([[*b"abc"]], ["length"])


async def test_the_harness_answers_what_was_set_for_a_request():
    harness = ServerHarness()
    harness.set_desired_response(HI, create_chat_completion("hello", n=2))
    harness.set_desired_completion("once", create_completion("upon"))
    harness.set_tokens_and_logprobs_response("p", [1, 2], [[3]], [[-0.5]], ["stop"])
    assert [c.message.content for c in (await harness.chat_completion(messages=HI, n=2)).choices] == ["hello"] * 2
    assert (await harness.completion(prompt="once")).choices[0].text == "upon"
    expected = ([1, 2], [[3]], [[-0.5]], ["stop"])
    assert await harness.tokens_and_logprobs_completion(prompt="p") == expected
    assert await harness.tokens_and_logprobs_completion(input_ids=[1, 2]) == expected


def test_the_byte_tokenizer_reads_back_what_it_wrote():
    tokenizer = ByteTokenizer()
    text = "<|im_start|>user\nhé 🙂<|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhé 🙂"
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "a", "é"]) == [EOS, 97, None]


def test_the_byte_tokenizer_renders_a_chat_as_list_dict_or_text():
    tokenizer = ByteTokenizer()
    text = tokenizer.apply_chat_template(HI, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(HI, add_generation_prompt=True) == tokenizer.encode(text)
    assert tokenizer.apply_chat_template(HI, return_dict=True, add_generation_prompt=True)["input_ids"] == (
        tokenizer.encode(text)
    )
