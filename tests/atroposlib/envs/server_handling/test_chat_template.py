"""Bridges between turns, read off templates: real ones of many models, and ones made to be difficult."""

import pytest

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from atroposlib.envs.server_handling.chat_template import Bridge, ChatTemplate
from atroposlib.errors import RolloutInvalid
from tests.atroposlib.envs.server_handling.real_tokenizers import WITHOUT_TOOLS, template_files, tokenizer_with

TOOLS = [
    {
        "type": "function",
        "function": {"name": "terminal", "description": "Run.", "parameters": {"type": "object", "properties": {}}},
    }
]
QUESTION = {"role": "user", "content": "What is here?"}
SAID = {"role": "assistant", "content": "I see."}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls -la"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "terminal", "content": "file.py"}


def templates():
    return [pytest.param(file, id=file.stem) for file in template_files()]


@pytest.mark.parametrize("file", templates())
@pytest.mark.parametrize(
    ("answer", "new", "tools"),
    [(SAID, [{"role": "user", "content": "More, please."}], None), (CALLS, [RESULT], TOOLS)],
    ids=["question", "result"],
)
def test_a_bridge_is_what_the_template_itself_writes_after_the_answer(file, answer, new, tools):
    template = ChatTemplate(tokenizer_with(file.read_text()))
    if tools and file.stem in WITHOUT_TOOLS:
        with pytest.raises(RolloutInvalid):
            template.bridge(answer, new, tools, {})
        return
    whole = template.chat.render([QUESTION, answer, *new], tools, {})
    bridge = template.bridge(answer, new, tools, {})
    assert bridge is not None
    assert whole.endswith(bridge.end_token + bridge.rest)
    assert new[-1]["content"] in bridge.rest
    assert "ls -la" not in bridge.rest
    assert SAID["content"] not in bridge.rest


@pytest.mark.parametrize("file", [each for each in templates() if each.id not in WITHOUT_TOOLS])
def test_what_was_found_out_about_one_answer_holds_for_the_next(file):
    used = ChatTemplate(tokenizer_with(file.read_text()))
    for name, number in [("terminal", "abcdefghi"), ("terminal", "jklmnopqr"), ("read_file", "stuvwxyz0")]:
        function = {"name": name, "arguments": {}}
        answer = {**SAID, "tool_calls": [{"id": number, "type": "function", "function": function}]}
        news = [{**RESULT, "tool_call_id": number, "name": name}]
        fresh = ChatTemplate(tokenizer_with(file.read_text()))
        assert used.bridge(answer, news, TOOLS, {}) == fresh.bridge(answer, news, TOOLS, {})


def real_template(name: str) -> ChatTemplate:
    files = {file.stem: file for file in template_files()}
    if name not in files:
        pytest.skip("needs the package trl, for real templates")
    return ChatTemplate(tokenizer_with(files[name].read_text()))


@pytest.mark.parametrize(
    ("name", "written", "finish_reason", "last"),
    [
        ("deepseekv3", "<｜tool▁calls▁end｜>", "stop", None),
        ("deepseekv3", "<｜end▁of▁sentence｜>", "stop", "<｜end▁of▁sentence｜>"),
        ("gemma4_v2", "<tool_call|>", "stop", None),
        ("gemma4", "<|tool_response>", "stop", "<|tool_response>"),
        ("gemma4", "<turn|>", "stop", "<turn|>"),
        ("llama3_1", "<|eom_id|>", "stop", "<|eom_id|>"),
        ("qwen3", "<|im_start|>", "length", None),
        ("qwen3", "<|im_start|>", "stop", None),
        ("qwen3", "<|eot_id|>", "stop", "<|eot_id|>"),
        ("qwen3", "<|eot_id|>", "length", None),
    ],
)
def test_a_special_token_ends_a_turn_unless_it_is_part_of_what_was_said(name, written, finish_reason, last):
    template = real_template(name)
    ids = template.tokens.encode("x" + written)
    assert template.tokens.decode(ids[-1:]) == written
    assert template.end_of(ids, finish_reason) == last


def test_what_opens_the_result_of_a_tool_is_added_after_whatever_ended_the_call():
    bridge = real_template("gemma4").bridge(CALLS, [RESULT], TOOLS, {})
    assert bridge.after(None).startswith("<|tool_response>response:terminal{")
    assert bridge.after("<turn|>").startswith("<|tool_response>response:terminal{")
    assert bridge.after("<|tool_response>").startswith("response:terminal{")


def test_a_turn_that_another_token_ended_is_not_ended_twice():
    bridge = real_template("llama3_1").bridge(CALLS, [RESULT], TOOLS, {})
    assert bridge.after("<|eom_id|>").startswith("<|start_header_id|>ipython")


@pytest.mark.parametrize("tool", ["e", "n", "|", ">", "tool"])
@pytest.mark.parametrize("name", ["gemma4", "gptoss", "qwen3", "deepseekv3"])
def test_the_end_of_a_turn_is_found_whatever_the_tool_is_called(name, tool):
    template = real_template(name)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": tool, "arguments": {}}}
    bridge = template.bridge({**SAID, "tool_calls": [call]}, [{**RESULT, "name": tool}], TOOLS, {})
    expected = template.bridge(CALLS, [RESULT], TOOLS, {})
    assert bridge.end_token == expected.end_token
    assert bridge.rest == expected.rest.replace("terminal", tool)


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_parallel_calls_are_continued_where_the_template_writes_only_one(name):
    template = real_template(name)
    calls = [{**CALLS["tool_calls"][0], "id": number} for number in ("abcdefghi", "jklmnopqr")]
    results = [{**RESULT, "tool_call_id": call["id"], "content": f"of {call['id']}"} for call in calls]
    with pytest.raises(RolloutInvalid):
        template.prompt([QUESTION, {**CALLS, "tool_calls": calls}, *results], TOOLS, {})
    bridge = template.bridge({**CALLS, "tool_calls": calls}, results, TOOLS, {})
    assert bridge.rest.index("of abcdefghi") < bridge.rest.index("of jklmnopqr")


def test_calls_that_a_template_does_not_write_are_never_left_out_silently():
    template = real_template("llama3")
    with pytest.raises(RolloutInvalid, match="does not write tool calls"):
        template.prompt([QUESTION, CALLS, RESULT], TOOLS, {})
    assert "file.py" in template.bridge(CALLS, [RESULT], TOOLS, {}).rest


def test_a_template_that_insists_on_a_system_message_is_used_with_one():
    strict = "{% if messages[0].role != 'system' %}{{ raise_exception('a system message first') }}{% endif %}"
    template = ChatTemplate(tokenizer_with(strict + CHATML_TEMPLATE))
    system = {"role": "system", "content": "Be brief."}
    whole = template.prompt([system, QUESTION, SAID, QUESTION], None, {})
    assert "Be brief." in whole
    assert whole.endswith(template.bridge(SAID, [QUESTION], None, {}).after(None))
    with pytest.raises(RolloutInvalid, match="a system message first"):
        template.prompt([QUESTION], None, {})


def test_thoughts_are_handed_to_a_template_that_reads_them_apart():
    template = real_template("gptoss")
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."}
    text = template.chat.render([QUESTION, thought], None, {}, generate=False)
    assert "<|channel|>analysis<|message|>hm<|end|>" in text
    assert "<think>" not in text
    assert template.change([QUESTION], True, False, None, {}) == "history"


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "qwen3_5_think", "qwen3_6"])
def test_what_a_template_reads_out_of_the_content_stays_there(name):
    template = real_template(name)
    said = {**CALLS, "content": "<think>\nhm\n</think>\n\nI look."}
    ours = template.chat.render([QUESTION, said, RESULT], TOOLS, {})
    assert ours.index("hm") < ours.index("</think>") < ours.index("I look.") < ours.rindex("<tool_call>")
    begun = template.prompt([QUESTION, {"role": "assistant", "content": "<think>\nFirst, I"}], None, {})
    assert begun.endswith("First, I")


def test_a_turn_that_ends_in_two_tokens_ends_in_them_once():
    template = real_template("cohere2")
    bridge = template.bridge(SAID, [QUESTION], None, {})
    first, second = "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"
    assert bridge.after(None).startswith(first + second)
    assert bridge.after(first).startswith(second)
    assert bridge.after(second).startswith("<|START_OF_TURN_TOKEN|>")
    assert template.end_of(template.tokens.encode("x" + second), "length") == second


def test_a_header_that_only_the_last_answer_has_is_told_apart_from_a_changed_answer():
    template = real_template("qwen3")
    assert template.change([QUESTION], False, False, None, {"enable_thinking": False}) == "header"
    assert template.change([QUESTION], False, False, None, {}) is None


def test_an_answer_that_the_caller_begins_after_another_is_left_open():
    begun = [QUESTION, {"role": "assistant", "content": "Sure,"}]
    bridge = ChatTemplate(ByteTokenizer()).bridge(SAID, begun, None, {})
    assert bridge.after("<|im_end|>").endswith("<|im_start|>assistant\nSure,")


def test_a_template_that_leaves_messages_out_is_refused():
    silent = CHATML_TEMPLATE.replace("'<|im_start|>tool\\n' + message.content + '<|im_end|>\\n'", "''")
    with pytest.raises(RolloutInvalid, match="leaves out messages of the roles"):
        ChatTemplate(ByteTokenizer(silent)).bridge(CALLS, [RESULT], TOOLS, {})


def test_a_template_that_raises_names_the_setting():
    angry = "{{ messages[0].nothing.at_all }}"
    with pytest.raises(RolloutInvalid, match=r"--env\.tokenizer_name") as refused:
        ChatTemplate(ByteTokenizer(angry)).prompt([QUESTION], None, {})
    assert refused.value.reason == "chat_template"


@pytest.mark.parametrize(
    ("last_token", "added"),
    [
        (None, "<|im_end|>\n<|im_start|>"),
        ("<|im_end|>", "\n<|im_start|>"),
        ("<|endoftext|>", "\n<|im_start|>"),
    ],
)
def test_the_end_of_a_turn_is_added_only_where_the_engine_did_not_sample_one(last_token, added):
    assert Bridge("<|im_end|>", "\n<|im_start|>").after(last_token) == added


def test_where_turns_have_no_end_the_next_header_is_added_unless_it_was_sampled():
    bridge = Bridge("", "<|observation|>result<|assistant|>")
    assert bridge.after(None) == "<|observation|>result<|assistant|>"
    assert bridge.after("<|observation|>") == "result<|assistant|>"
    assert bridge.after("<|user|>") == "<|observation|>result<|assistant|>"


@pytest.mark.parametrize(
    ("name", "after_result", "after_question"),
    [("qwen3", True, False), ("qwen2_5", True, True), ("deepseek_r1_distill", False, False)],
)
def test_whether_thoughts_stay_is_found_out_from_the_template(name, after_result, after_question):
    template = real_template(name)
    assert (template.change([RESULT], True, True, TOOLS, {}) != "history") is after_result
    assert (template.change([QUESTION], True, False, None, {}) != "history") is after_question
    assert template.change([QUESTION], False, False, None, {}) != "history"


def test_a_template_that_moves_the_tools_does_not_keep_the_history():
    moving = (
        "{% for m in messages %}{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    )
    template = ChatTemplate(ByteTokenizer(moving))
    assert template.change([QUESTION], False, False, TOOLS, {}) == "history"
    assert template.change([QUESTION], False, False, None, {}) is None


def test_images_are_refused_by_name():
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]}
    with pytest.raises(RolloutInvalid, match="message 0 holds a part of type 'image_url'") as refused:
        ChatTemplate(ByteTokenizer()).prompt([message], None, {})
    assert refused.value.reason == "image_content"


@pytest.mark.parametrize("content", [5, {"out": 1}, ["text"]])
def test_content_that_is_neither_text_nor_parts_is_refused_by_its_place(content):
    message = {"role": "tool", "content": content, "tool_call_id": "abcdefghi"}
    with pytest.raises(RolloutInvalid, match="the content of message 1 is a") as refused:
        ChatTemplate(ByteTokenizer()).prompt([QUESTION, message], None, {})
    assert refused.value.reason == "message_content"


def test_parts_of_text_are_joined():
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert "\nab<|im_end|>" in ChatTemplate(ByteTokenizer()).prompt([message], None, {})


def test_an_answer_that_the_caller_began_is_left_open():
    text = ChatTemplate(ByteTokenizer()).prompt([QUESTION, {"role": "assistant", "content": "It is"}], None, {})
    assert text.endswith("<|im_start|>assistant\nIt is")


def test_a_lone_surrogate_does_not_break_the_encoder():
    assert ChatTemplate(tokenizer_with(CHATML_TEMPLATE)).tokens.encode("a\ud800b") == ChatTemplate(
        tokenizer_with(CHATML_TEMPLATE)
    ).tokens.encode("a?b")
