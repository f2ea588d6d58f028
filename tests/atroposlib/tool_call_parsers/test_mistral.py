"""Mistral: lists of calls, and ids of nine letters."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.base import fresh_id
from tests.atroposlib.tool_call_parsers.parsing import TOOLS, broken, good, parse


def test_mistral_keeps_the_calls_of_a_list_apart():
    text = (
        '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {oops}}, '
        '{"name": "c", "arguments": {}}]'
    )
    parsed = parse("mistral", text)
    assert [call.name for call in parsed.tool_calls] == ["a", "b", "c"]
    assert broken(parsed) == [("b", '{"name": "b", "arguments": {oops}}')]


def test_mistral_ids_are_kept_or_made_of_nine_letters():
    parsed = parse("mistral", '[TOOL_CALLS]a[CALL_ID]Xy1234567[ARGS]{}[TOOL_CALLS]b{"token": "[TOOL_CALLS]"}</s>')
    first, second = parsed.tool_calls
    assert first.id == "Xy1234567"
    assert len(second.id) == 9
    assert second.id.isalnum()
    assert json.loads(second.arguments) == {"token": "[TOOL_CALLS]"}


MISTRAL_IDS = st.sampled_from(["abc123def", "abc123de2", "000000001", "1 x", "", "call_1", "abc123defg", "é23456789"])


@pytest.mark.parametrize("in_list", [True, False])
@given(ids=st.lists(MISTRAL_IDS, min_size=1, max_size=6), number=st.none() | st.integers(0, 3))
def test_mistral_ids_have_nine_letters_and_are_unique_whatever_the_model_writes(in_list, ids, number):
    if in_list:
        text = "[TOOL_CALLS]" + json.dumps([{"name": "a", "arguments": {}, "id": id} for id in ids])
    else:
        text = "".join(f"[TOOL_CALLS]a[CALL_ID]{id}[ARGS]{{}}" for id in ids)
    parsed = get_parser("mistral").parse(text, TOOLS, call_number=number)
    made = [call.id for call in parsed.tool_calls]
    assert good(parsed) == [("a", {})] * len(ids)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", id) for id in made)
    assert len(set(made)) == len(ids)
    if ids[0] in ("abc123def", "abc123de2", "000000001"):
        assert made[0] == ids[0]


def test_mistral_an_id_of_an_earlier_turn_is_counted_up_in_nine_letters():
    assert fresh_id("abc123def", {"abc123def", "abc123de2"}) == "abc123de3"
    taken = {"abc123def", *(f"abc123de{n}" for n in range(10)), *(f"abc123d{n}" for n in range(10, 100))}
    assert fresh_id("abc123def", taken) == "abc123100"


def test_mistral_without_arguments_is_an_error():
    assert broken(parse("mistral", "[TOOL_CALLS]write now, please")) == [("write", "write now, please")]
