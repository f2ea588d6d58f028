import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments.dataset_environment.workbench.bench import Bench
from environments.dataset_environment.workbench.cases import keep_case, read_cases, replay
from tests.environments.dataset_environment.scripted import make_env
from tests.environments.dataset_environment.sums import write_gsm8k

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def kept(here):
    """Two cases, of a right and of a wrong answer; the test that replays them."""
    return asyncio.run(keep_two_cases(here))


async def keep_two_cases(here):
    write_gsm8k(here / "gsm8k")
    rewards = ["accuracy", {"type": "combined", "weight": 0.5, "params": {"rewards": ["format", "length"]}}]
    env = make_env([], reward_functions=rewards, max_tokens=16)
    await env.setup()
    question = await env.get_next_item()
    test = here
    for text in (question.answer, "I do not know"):
        judged = await Bench(env).judge(question, text)
        test = keep_case(here / "reward_cases", "sums", env.config, question, judged)
    return test


def test_kept_cases_are_worth_what_they_were(kept):
    right, wrong = read_cases(str(kept))
    assert replay(right) == right.rewards
    assert replay(wrong) == wrong.rewards
    assert (right.rewards["0.accuracy"], wrong.rewards["0.accuracy"]) == (1.0, 0.0)
    assert {"1.combined(format,length)", "1.combined(format,length)/1.length"} <= right.rewards.keys()


def test_pytest_runs_the_kept_cases_and_tells_a_reward_that_has_changed(kept):
    assert "2 passed" in run_pytest(kept)
    cases = kept.with_name("sums.jsonl")
    lines = [json.loads(line) for line in cases.read_text().splitlines()]
    lines[1]["rewards"]["0.accuracy"] = 1.0
    cases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 failed, 1 passed" in run_pytest(kept)


def run_pytest(path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=path.parent, env=env, capture_output=True, text=True, check=False).stdout
