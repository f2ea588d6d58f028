"""The time of parsing grows with the length of the text and no faster, also where the text is made to prevent that.

No absolute times: a text is held against half of it, at the median of several runs.
"""

import gc
import re
import time
from statistics import median

import pytest

from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.base import MAX_CALLS
from tests.atroposlib.tool_call_parsers.formats import IN_JSON, IN_TAGS
from tests.atroposlib.tool_call_parsers.test_every_format import TOOLS

ALL = IN_JSON | IN_TAGS
LENGTH = 30_000
EASE, TOLERANCE = 2.4, 3.5
"""Twice the text takes twice as long; with the square of the length it would take four times. What takes no more than
``EASE`` times is good at once; what takes more is looked at in longer texts, and must not come to ``TOLERANCE``."""
ATTEMPTS = 4
"""Each with twice the length of the one before: what is noise goes away with that, and what is quadratic shows."""

_TOKENS = re.compile(r'<\|"\|>|</?[^<>\n]*>|\[[A-Z_]+\]|```json|[\w.:=]+|\s+|.', re.DOTALL)
_COMMON = ['"', "\\", '\\"', "'", "{", "}", "[", "]", "{}", '{"a":', "{'a':", "1,", "</think>", "<think>", '{"name"']
_FILLING = {"dense": "", "blanks": " " * 200, "letters": "x" * 200, "lines": "\n" * 200}


def tokens_of(name):
    _, write = ALL[name]
    return _TOKENS.findall(write([("terminal", {"text": "x", "items": [1]}), ("read_file", {"count": 2})]))


def marks_of(name):
    return sorted({token for token in tokens_of(name) if len(token) > 1 and not token.isspace()})


def units_of(name):
    """What is repeated: each mark, each with the two that follow it, and marks before the beginnings of values."""
    tokens, marks = tokens_of(name), marks_of(name)
    runs = ["".join(tokens[at : at + width]) for width in (2, 3, 5, 8) for at in range(len(tokens) // 2)]
    mixed = [mark + piece for mark in marks for piece in ('"', "{", '{"a":', "[1,", "\\", '{"name"', "{}")]
    return list(dict.fromkeys([*marks, *_COMMON, *runs, *mixed]))


def broken_off(name, part):
    """The beginning of a call: this part of it."""
    tokens = tokens_of(name)
    return "".join(tokens[: round(len(tokens) * part)])


def hostile(name):
    """Pairs of a beginning and of what is repeated after it."""
    for unit in units_of(name):
        yield "", unit
        yield broken_off(name, 1 / 2), unit
    for unit in marks_of(name):
        yield broken_off(name, 1 / 3), unit
        for filling in _FILLING.values():
            yield "", unit + filling
    for length in range(1, 10):
        for unit in ("1,", "{}, ", '{"a": 1}, ', '{"a":[', "'a': "):
            yield "".join(tokens_of(name)[:length]), unit


def seconds(parser, text, runs=3):
    def once():
        started = time.thread_time()
        parser.parse(text, TOOLS)
        return time.thread_time() - started

    gc.disable()
    try:
        return median(once() for _ in range(runs))
    finally:
        gc.enable()


def grows_too_fast(parser, text_of, floor):
    """Whether it does at every length; times below ``floor`` are taken for it, since they are mostly noise."""
    growth = 0.0
    for attempt in range(-1, ATTEMPTS):
        size = LENGTH * 2 ** max(attempt, 0)
        runs = 1 if attempt < 0 else 3  # one glance suffices where nothing is wrong
        longer = seconds(parser, text_of(2 * size), runs)
        if longer < EASE * floor or (growth := longer / max(seconds(parser, text_of(size), runs), floor)) < EASE:
            return False
    return growth >= TOLERANCE


@pytest.mark.parametrize("name", ALL)
def test_the_time_grows_with_the_length_and_no_faster(name):
    parser = get_parser(ALL[name][0])
    wordy = seconds(parser, "I look at it. " * (LENGTH // 14), runs=9)
    for beginning, unit in hostile(name):

        def text_of(size, beginning=beginning, unit=unit):
            return beginning + unit * (size // len(unit))

        assert not grows_too_fast(parser, text_of, wordy), (beginning, unit)


@pytest.mark.parametrize("name", ALL)
def test_no_more_calls_are_read_than_a_message_may_have(name):
    parser = get_parser(ALL[name][0])
    for unit in units_of(name):
        assert len(parser.parse(unit * 400, TOOLS).tool_calls) <= MAX_CALLS + 1


def nested(size):
    """Objects inside each other, none of them closed, and a long list in the innermost: each takes reading it all."""
    return '{"name":' * 500 + "[" + "1," * (size // 2)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "text_of",
    [
        nested,
        lambda size: "[TOOL_CALLS][" + nested(size),
        lambda size: "<|python_tag|>" + nested(size),
        lambda size: "{}" * (size // 4) + "<|python_tag|>" + "[" * (size // 2),
        lambda size: '[TOOL_CALLS][{"name": "a", "arguments": {}}' + ', {"name": "a", "arguments": {}}' * (size // 31),
        lambda size: '<tool_call>[{"name": "a"}' + ', {"name": "a"}' * (size // 15) + "]</tool_call>",
        lambda size: "<function=terminal>" + "<parameter=text>x" * (size // 17) + "</function>",
        lambda size: '<invoke name="terminal">' + '<parameter name="text">x' * (size // 24) + "</invoke>",
    ],
)
def test_the_time_grows_no_faster_with_texts_made_by_hand(name, text_of):
    parser = get_parser(ALL[name][0])
    assert not grows_too_fast(parser, text_of, seconds(parser, "I look at it. " * (LENGTH // 14)))
    assert len(parser.parse(text_of(LENGTH), TOOLS).tool_calls) <= MAX_CALLS + 1


def test_nested_braces_cost_no_more_than_some_readings_of_the_text():
    flat, deep = "[1," + "1," * LENGTH, nested(2 * LENGTH)
    for name in ("llama3_json", "mistral"):
        parser = get_parser(name)
        once = seconds(parser, "[TOOL_CALLS][{" + flat + "]}]") + seconds(get_parser("hermes"), "<tool_call>" + flat)
        assert seconds(parser, "[TOOL_CALLS][" + deep) < 150 * once


def test_formulas_and_code_before_a_call_do_not_hide_it():
    call = '{"name": "terminal", "parameters": {"text": "ls"}}'
    for written in (r"\frac{a}{b} ", "if x { y } ", "{1, 2} "):
        parsed = get_parser("llama3_json").parse(written * 3000 + call, TOOLS)
        assert [made.name for made in parsed.tool_calls] == ["terminal"]
