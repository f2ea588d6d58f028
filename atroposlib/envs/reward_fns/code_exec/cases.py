"""Tests of code, as datasets hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import RewardError


@dataclass(frozen=True)
class StdioCase:
    """What the program reads, and what it must print."""

    given: str
    wanted: str


@dataclass(frozen=True)
class Script:
    """Code that follows the completion's and raises where that is wrong."""

    code: str


Case = StdioCase | Script


def cases_from(tests: Any) -> list[Case]:
    """A script of assertions; a list of such, or of ``{"input": …, "output": …}``; or APPS' ``{"inputs", "outputs"}``.

    A text that is JSON of one of these is read as that.

    Raises: RewardError for anything else, and for no tests at all.
    """
    if isinstance(tests, str):
        parsed = _as_json(tests)
        return [Script(tests)] if parsed is None else cases_from(parsed)
    if isinstance(tests, Mapping):
        return [_one(each) for each in _pairs(tests)]
    if not isinstance(tests, Sequence) or not tests:
        raise RewardError(f"code_exec needs tests, and the right answer is {tests!r:.100}")
    if all(isinstance(each, str) for each in tests):
        return [Script(each) for each in tests]
    return [_one(each) for each in tests]


def _pairs(tests: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence):
        return [tests]
    if len(inputs) != len(outputs) or not inputs:
        raise RewardError(f"code_exec: {len(inputs)} inputs and {len(outputs)} outputs are no tests")
    return [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]


def _one(case: Any) -> StdioCase:
    if not isinstance(case, Mapping) or "input" not in case or "output" not in case:
        raise RewardError(f"code_exec: a test needs 'input' and 'output', and {case!r:.100} has not both")
    return StdioCase(_lines(case["input"]), _lines(case["output"]))


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _as_json(text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
