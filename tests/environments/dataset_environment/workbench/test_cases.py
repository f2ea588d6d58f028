import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from environments.dataset_environment.workbench.bench import Bench
from environments.dataset_environment.workbench.cases import keep_case, read_cases, replay
from tests.atroposlib.envs.server_handling.stub_engine import serving
from tests.environments.agent_engine import AgentEngine
from tests.environments.dataset_environment.scripted import make_env
from tests.environments.dataset_environment.sums import sums, write_gsm8k, write_jsonl

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


async def kept_and_replayed(here, rewards, question, text, **settings):
    """What the rewards said of an answer, and what they say when it is replayed."""
    write_jsonl(here / "d.jsonl", [question])
    data = {"dataset_name": None, "dataset_config": None, "dataset_path": "d.jsonl", "eval_fraction": 0.0}
    env = make_env([], reward_functions=rewards, **data, **settings)
    await env.setup()
    judged = await Bench(env).judge(env.items[0], text)
    test = keep_case(here / "reward_cases", "one", env.config, env.items[0], judged)
    await env.aclose()
    (case,) = read_cases(str(test))
    return case.rewards, await asyncio.to_thread(replay, case)


async def test_code_is_run_again_in_a_box_of_the_same_backend(here):
    program = "```python\ndef double(x):\n    return 2 * x\n```"
    question = {"question": "Double it.", "answer": "assert double(2) == 4"}
    said, again = await kept_and_replayed(here, ["code_exec"], question, program, terminal_backend="local")
    assert said == again == {"all together": 1.0, "0.code_exec": 1.0}


class Grader(AgentEngine):
    """A judge of whom every answer is worth 7 of 10."""

    async def _chat(self, request):
        letter = json.loads(await request.read())["messages"][-1]["content"]
        key = re.search(r"^(.+): N$", letter, re.MULTILINE)[1]
        choice = {"index": 0, "message": {"role": "assistant", "content": f"{key}: 7"}, "finish_reason": "stop"}
        return self._answer("chat.completion", [choice])


async def test_the_same_judge_is_asked_again(here):
    grader = Grader()
    async with serving(grader) as url:
        judging = {"type": "llm_judge", "params": {"server": {"base_url": "http://127.0.0.1:9", "api_key": "secret"}}}
        said, again = await kept_and_replayed(here, [judging], sums(1)[0], "It is 2.", judge_base_url=url)
    assert said == again == {"all together": 0.7, "0.llm_judge": 0.7}
    assert len(grader.bodies("/v1/chat/completions")) == 2
    assert "secret" not in (here / "reward_cases" / "one.jsonl").read_text()


async def test_what_a_model_left_in_its_box_makes_no_case(here):
    question = {"question": "Double it.", "answer": "assert True"}
    with pytest.raises(ValueError, match="the box that the model worked in"):
        await kept_and_replayed(
            here, ["code_exec"], question, "pass", terminal_backend="local", enabled_toolsets=["terminal"]
        )


def test_cases_of_earlier_versions_are_still_read(kept):
    cases = kept.with_name("sums.jsonl")
    lines = [json.loads(line) for line in cases.read_text().splitlines()]
    for line in lines:
        settings = line.pop("settings")
        line |= {name: settings.get(name) or [] for name in ("reward_functions", "reward_modules")}
        line["max_tokens"] = 16
    cases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [replay(case) for case in read_cases(str(kept))] == [case["rewards"] for case in lines]


def test_pytest_runs_the_kept_cases_and_tells_a_reward_that_has_changed(kept):
    cases = kept.with_name("sums.jsonl")
    lines = [json.loads(line) for line in cases.read_text().splitlines()]
    lines[1]["rewards"]["0.accuracy"] = 1.0
    cases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 failed, 1 passed" in run_pytest(kept)


def run_pytest(path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=path.parent, env=env, capture_output=True, text=True, check=False).stdout
