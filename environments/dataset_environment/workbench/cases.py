"""Cases kept from the bench, which pytest replays: an answer, and what every reward said of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atroposlib.envs.reward_fns.scoring import Part, Score, rewards_as_one, score
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions import Question
from environments.dataset_environment.rewards import import_rewards
from environments.dataset_environment.workbench.bench import Judged

TEST_FILE = '''\
"""Cases kept from the workbench; `pytest {name}` checks that rewards still say of them what they said."""

import pytest

from environments.dataset_environment.workbench.cases import read_cases, replay


@pytest.mark.parametrize("case", read_cases(__file__), ids=lambda case: case.name)
def test_the_rewards_say_what_they_said(case):
    assert replay(case) == pytest.approx(case.rewards)
'''


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
    reward_functions: Sequence[Any]
    reward_modules: Sequence[str]
    max_tokens: int | None
    rewards: Mapping[str, float]
    """The value of each reward, nested ones too, and of all together."""


def keep_case(folder: Path, name: str, config: DatasetEnvConfig, question: Question, judged: Judged) -> Path:
    """Add a case to ``<folder>/<name>.jsonl`` and see that a test beside it reads it. Returns the test.

    Raises: ValueError for an answer that could not be judged.
    """
    if judged.score.reward is None:
        raise ValueError("an answer that could not be judged makes no case")
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
        reward_functions=config.rewards,
        reward_modules=config.reward_modules,
        max_tokens=config.max_tokens,
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
    return [Case(**json.loads(line)) for line in lines]


def replay(case: Case) -> dict[str, float]:
    """What the rewards say now. Raises: RewardError where one cannot judge the answer any more."""
    import_rewards(case.reward_modules)
    of_each = {"solution": case.answer, "ground_truth": case.ground_truth, "token_lengths": case.tokens}
    given: dict[str, Any] = {name: [value] for name, value in of_each.items() if value is not None}
    scores = asyncio.run(
        score(
            rewards_as_one(case.reward_functions),
            [[{"role": "assistant", "content": case.text}]],
            item=case.row,
            prompt=case.prompt,
            config=DatasetEnvConfig(max_tokens=case.max_tokens),
            **given,
        )
    )
    for error in scores.failures.values():
        raise error
    return _values(scores[0])


def _values(said: Score) -> dict[str, float]:
    return {"all together": said.reward or 0.0, **dict(_named(said.parts))}


def _named(parts: Sequence[Part], prefix: str = "") -> Iterator[tuple[str, float]]:
    for place, part in enumerate(parts):
        name = f"{prefix}{place}.{part.name}"
        yield name, part.value
        yield from _named(part.parts, f"{name}/")
