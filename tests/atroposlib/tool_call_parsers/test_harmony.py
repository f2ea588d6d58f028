"""Harmony: channels, recipients, and what is markup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.atroposlib.tool_call_parsers.formats import harmony
from tests.atroposlib.tool_call_parsers.parsing import broken, good, parse

HARMONY = (
    "<|channel|>analysis<|message|>I need the file.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me write it.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
    '{"path": "a <|call|> b", "lines": 2}<|call|>'
)


def test_harmony_thoughts_and_preambles_are_content_and_the_call_is_read():
    parsed = parse("harmony", HARMONY)
    assert good(parsed) == [("write", {"path": "a <|call|> b", "lines": 2})]
    assert parsed.content == "<think>\nI need the file.\n</think>\n\nLet me write it."


@pytest.mark.parametrize("end", ["", "<|return|>", "<|end|>"])
def test_harmony_answers_without_calls_lose_their_markup(end):
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.{end}"
    assert parse("harmony", text).content == "<think>\nHm.\n</think>\n\nIt is 4."
    assert parse("harmony", f"<|channel|>final<|message|>It is 4.{end}").content == "It is 4."


def test_harmony_thoughts_that_were_cut_stay_open():
    parsed = parse("harmony", "<|channel|>analysis<|message|>I wonder")
    assert (parsed.content, parsed.tool_calls) == ("<think>\nI wonder", ())


def test_harmony_a_broken_call_takes_no_other_with_it():
    text = (
        "<|channel|>commentary to=functions.write<|message|>{path: a}<|call|>"
        "<|start|>assistant<|channel|>commentary to=browser.search json<|message|>{}<|call|>"
        "<|start|>assistant to=functions.write<|channel|>commentary<|message|>[1]<|call|>"
    )
    parsed = parse("harmony", text)
    assert good(parsed) == [("browser.search", {})]
    assert broken(parsed) == [("write", "{path: a}"), ("write", "[1]")]


@pytest.mark.parametrize("role", [" to=functions.write", "to=functions.write", " to=functions.write ", "\n to=write"])
@pytest.mark.parametrize("kind", ["commentary json", "commentary <|constrain|>json", "commentary", "analysis"])
@pytest.mark.parametrize("parser", ["harmony", "gpt_oss"])
def test_harmony_a_call_may_begin_where_the_prompt_of_the_template_ends(parser, role, kind):
    text = f'{role}<|channel|>{kind}<|message|>{{"path": "a"}}'
    parsed = parse(parser, f"{text}<|call|>")
    assert (good(parsed), parsed.content) == ([("write", {"path": "a"})], None)
    assert good(parse(parser, text)) == [("write", {"path": "a"})]
    more = parse(parser, f"{text}<|call|><|start|>assistant<|channel|>final<|message|>Done.<|return|>")
    assert (good(more), more.content) == ([("write", {"path": "a"})], "Done.")
    assert broken(parse(parser, f"{role}<|channel|>{kind}<|message|>{{path}}<|call|>")) == [("write", "{path}")]


@given(
    calls=st.lists(st.tuples(st.sampled_from(["write", "read.it"]), st.dictionaries(st.text(), st.text())), min_size=1)
)
def test_harmony_what_the_template_writes_is_read_without_what_the_prompt_holds_of_it(calls):
    text = harmony(calls).removeprefix("<|start|>assistant")
    parsed = parse("harmony", text)
    assert (good(parsed), parsed.content) == (calls, None)


@pytest.mark.parametrize("text", [" to=functions.write", "to=me is no call", " to=functions.write{}", "so to=a<b"])
def test_harmony_what_only_looks_like_a_recipient_is_text(text):
    parsed = parse("harmony", text)
    assert (parsed.content, parsed.tool_calls) == (text, ())
