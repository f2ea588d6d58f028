"""Messages to tokens, and a model's text to a message."""

from __future__ import annotations

import json

import pytest

from tests.trainer.tiny_model import make_tokenizer
from trainer.engine.chat import Words
from trainer.errors import InvalidRequest, UsageError

TOOLS = [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def words() -> Words:
    return Words(make_tokenizer())


def test_tool_calls_become_calls_with_their_arguments_as_text(words: Words) -> None:
    text = 'Look.\n<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
    message = words.assistant_message(text, TOOLS)
    assert message.calls_tools
    assert message.body["content"] == "Look."
    (call,) = message.body["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "terminal")
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}


def test_broken_call_is_a_call_whose_arguments_are_what_was_written(words: Words) -> None:
    message = words.assistant_message('<tool_call>\n{"name": "terminal", "arguments": {\n</tool_call>', TOOLS)
    (call,) = message.body["tool_calls"]
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(call["function"]["arguments"])


def test_text_is_left_alone_where_no_tools_were_offered(words: Words) -> None:
    text = '<tool_call>\n{"name": "terminal", "arguments": {}}\n</tool_call>'
    assert words.assistant_message(text, None).body == {"role": "assistant", "content": text}
    assert Words(make_tokenizer(), None).assistant_message(text, TOOLS).body["content"] == text


def test_history_with_calls_renders_whether_arguments_are_text_or_an_object(words: Words) -> None:
    def history(arguments: object) -> list[dict[str, object]]:
        call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
        return [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "out", "tool_call_id": "1"},
        ]

    as_text, as_object = words.render(history('{"command": "ls"}')), words.render(history({"command": "ls"}))
    assert as_text == as_object
    assert '{"command": "ls"}' in words.decode(as_text, False)


def test_content_that_is_no_text_is_refused(words: Words) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InvalidRequest, match="text only"):
        words.render([{"role": "user", "content": [image]}])


def test_template_that_refuses_or_is_missing_is_said(words: Words) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(InvalidRequest, match="no system role here"):
        Words(tokenizer).render([{"role": "user", "content": "hi"}])
    tokenizer.chat_template = None
    with pytest.raises(InvalidRequest, match="no chat template"):
        Words(tokenizer).render([{"role": "user", "content": "hi"}])


def test_last_message_may_be_continued(words: Words) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer"}]
    ids = words.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert words.decode(ids, False).endswith("The answer")


def test_unknown_parser_is_refused() -> None:
    with pytest.raises(UsageError, match="hermes"):
        Words(make_tokenizer(), "nonsense")
