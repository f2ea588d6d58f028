"""Cases kept from the bench, which pytest replays: an answer, and what every reward said of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atroposlib.envs.masking import masked
from atroposlib.envs.reward_fns.scoring import Part, Score, rewards_as_one
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.dataset_env import DatasetEnv
from environments.dataset_environment.questions import Question
from environments.dataset_environment.workbench.bench import Judged

TEST_FILE = '''\
"""Cases kept from the workbench; `pytest {name}` checks that rewards still say of them what they said."""

import pytest

from environments.dataset_environment.workbench.cases import read_cases, replay


@pytest.mark.parametrize("case", read_cases(__file__), ids=lambda case: case.name)
def test_the_rewards_say_what_they_said(case):
    assert replay(case) == pytest.approx(case.rewards)
'''


OF_A_RUN = frozenset(
    {"data_dir_to_save_evals", "data_path_to_save_groups", "metrics_dir", "rollout_server_token_env", "wandb_name"}
)
"""Settings that judge nothing, and that a replay must not follow."""
_OLDER = ("reward_functions", "reward_modules", "max_tokens")


@dataclass(frozen=True)
class Case:
    """One answer with all that the rewards need to judge it again."""

    name: str
    prompt: str
    text: str
    tokens: int | None
    answer: Any
    ground_truth: Any
    row: Mapping[str, Any]
    settings: Mapping[str, Any]
    """Those that were chosen, secrets masked: the rewards, where their boxes run, who judges."""
    rewards: Mapping[str, float]
    """The value of each reward, nested ones too, and of all together."""


def keep_case(folder: Path, name: str, config: DatasetEnvConfig, question: Question, judged: Judged) -> Path:
    """Add a case to ``<folder>/<name>.jsonl`` and see that a test beside it reads it. Returns the test.

    Raises: ValueError for an answer that no replay could judge; it says why.
    """
    if judged.score.reward is None:
        raise ValueError("an answer that could not be judged makes no case")
    if rewards_as_one(config.rewards).needs_box and (config.enabled_toolsets or config.distribution):
        raise ValueError("a reward looks at the box that the model worked in with its tools, which no case can keep")
    folder.mkdir(parents=True, exist_ok=True)
    cases, test = folder / f"{name}.jsonl", folder / f"test_{name}.py"
    number = len(cases.read_text().splitlines()) + 1 if cases.exists() else 1
    case = Case(
        name=f"{number}: {question.id}",
        prompt=question.prompt,
        text=judged.text,
        tokens=judged.tokens,
        answer=question.answer,
        ground_truth=question.ground_truth,
        row=question.row,
        settings=masked({name: getattr(config, name) for name in config.model_fields_set - OF_A_RUN}),
        rewards=_values(judged.score),
    )
    with cases.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(case), ensure_ascii=False, default=str) + "\n")
    if not test.exists():
        test.write_text(TEST_FILE.format(name=test.name), encoding="utf-8")
    return test


def read_cases(test_file: str) -> list[Case]:
    """The cases beside a test file."""
    path = Path(test_file)
    lines = path.with_name(f"{path.stem.removeprefix('test_')}.jsonl").read_text(encoding="utf-8").splitlines()
    return [_case(json.loads(line)) for line in lines]


def _case(kept: dict[str, Any]) -> Case:
    if "settings" not in kept:  # as earlier versions wrote it
        kept["settings"] = {name: kept.pop(name) for name in _OLDER}
    return Case(**kept)


def replay(case: Case) -> dict[str, float]:
    """What the rewards say now. Raises: RewardError where one cannot judge the answer any more."""
    return asyncio.run(_replay(case))


async def _replay(case: Case) -> dict[str, float]:
    # the environment itself judges, so that box and judge are those of a run; its engine is never asked
    env = DatasetEnv(DatasetEnvConfig(**case.settings), [ScriptedServer()])
    try:
        question = Question(
            id=case.name,
            conversation=({"role": "user", "content": case.prompt},),
            prefill="",
            answer=case.answer,
            ground_truth=case.ground_truth,
            row=case.row,
        )
        said = await env.judge_text(question, case.text, case.tokens)
    finally:
        await env.aclose()
    if said.error is not None:
        raise said.error
    return _values(said)


def _values(said: Score) -> dict[str, float]:
    return {"all together": said.reward or 0.0, **dict(_named(said.parts))}


def _named(parts: Sequence[Part], prefix: str = "") -> Iterator[tuple[str, float]]:
    for place, part in enumerate(parts):
        name = f"{prefix}{place}.{part.name}"
        yield name, part.value
        yield from _named(part.parts, f"{name}/")
