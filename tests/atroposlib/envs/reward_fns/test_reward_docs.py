"""What the docs say of rewards is what they do."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from atroposlib.envs.reward_fns import RewardRegistry, registry
from scripts.write_reward_docs import CASES, main

ALL_CASES: list[dict[str, Any]] = json.loads(CASES.read_text())


def test_the_page_is_what_docstrings_and_cases_make_of_it():
    assert main(["--check"]) == 0, "run: python scripts/write_reward_docs.py"


@pytest.mark.parametrize("name", RewardRegistry().list())
def test_every_reward_tells_its_formula_its_range_and_its_source(name):
    said = inspect.getdoc(RewardRegistry().get(name)) or ""
    assert "Range: " in said
    assert "Source: " in said


def identity(case: dict[str, Any]) -> str:
    return f"{case['reward']}: {case['completion'][:40]}"


@pytest.mark.parametrize("case", ALL_CASES, ids=identity)
def test_the_cases_of_the_docs(case):
    reward = registry.create({"type": case["reward"], "params": case["params"]})
    truth = {} if case["truth"] is None else {"solution": [case["truth"]]}
    [verdict] = reward.verdicts([case["completion"]], **truth)
    assert verdict == pytest.approx(case["value"]), verdict.why
    assert verdict.why


def test_the_cases_show_where_the_original_is_wrong():
    wrong = {case["reward"] for case in ALL_CASES if case["original"] != case["value"]}
    assert wrong >= {
        "accuracy",
        "accuracyx",
        "cascading_r1_math",
        "chandas_meter",
        "combined",
        "crossword_format",
        "r1",
        "reasoning_steps",
        "repetition_penalty",
    }
