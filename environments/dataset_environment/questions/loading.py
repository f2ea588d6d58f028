"""Everything that an environment asks: the questions to train on, and those held out."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions.columns import check_field, column_of
from environments.dataset_environment.questions.division import first_of_each, hold_out
from environments.dataset_environment.questions.prompts import RowReader, solved
from environments.dataset_environment.questions.question import Message, Question, QuestionSet
from environments.dataset_environment.questions.sources import Rows, Source, load_rows

logger = logging.getLogger(__name__)

READ_AT_ONCE = 1_000
HELD_OUT_AT_MOST = 1_000
"""Questions held out where an evaluation is to take all of them."""
_IDS = ("id", "task_id", "question_id", "uid")


@dataclass(frozen=True)
class Questions:
    """No question is in both; one of them may be empty."""

    train: QuestionSet
    held_out: QuestionSet


@dataclass(frozen=True)
class _Split:
    """The usable rows of a split: their numbers, and what names the question of each."""

    source: Source
    rows: Rows
    indices: list[int]
    keys: list[bytes]

    def at(self, places: list[int]) -> list[int]:
        """Numbers of rows, from places in ``indices``."""
        return [self.indices[place] for place in places]


def load_questions(config: DatasetEnvConfig, needs_answer: bool) -> Questions:
    """Load, check and part the data; waits for disk and network.

    ``needs_answer``: a reward wants the right answer, so rows without one are left out.

    Raises: ConfigError for a data set that is not there, a field that it does not have, or a split without rows.
    """
    loader = _Loader(config, needs_answer)
    train = loader.split(_train_source(config))
    evaluation_source = _evaluation_source(config)
    evaluation = loader.split(evaluation_source) if evaluation_source else None
    if evaluation is None:
        kept, held_out = hold_out(train.keys, _held_out_at_most(config, len(set(train.keys))), config.seed)
        held_out_split = train
    else:
        kept, held_out = _without(train, evaluation), first_of_each(evaluation.keys, set(evaluation.keys))
        held_out_split = evaluation
    shots, kept = loader.examples(train, kept)
    make = partial(loader.question, shots)
    return Questions(
        QuestionSet(train.rows, train.at(kept), partial(make, train.source)),
        QuestionSet(held_out_split.rows, held_out_split.at(held_out), partial(make, held_out_split.source)),
    )


def _train_source(config: DatasetEnvConfig) -> Source:
    name = config.dataset_path or config.dataset_name
    if not name:
        raise ConfigError("say which data set: --env.dataset_name, or --env.dataset_path for a local file or folder")
    return Source(name, config.dataset_config, config.split, "dataset_path" if config.dataset_path else "dataset_name")


def _evaluation_source(config: DatasetEnvConfig) -> Source | None:
    """The split that is evaluated, where one is named."""
    train = _train_source(config)
    if config.eval_dataset_name:
        name, setting = config.eval_dataset_name, "eval_dataset_name"
    elif config.eval_split:
        name, setting = train.name, train.setting
    else:
        return None
    own_config = train.config if name == train.name else None
    return Source(name, config.eval_dataset_config or own_config, config.eval_split or "test", setting)


def _held_out_at_most(config: DatasetEnvConfig, count: int) -> int:
    """How many of ``count`` questions an evaluation may keep for itself."""
    if config.eval_fraction == 0:
        return 0
    return max(1, min(config.eval_size or HELD_OUT_AT_MOST, int(count * config.eval_fraction)))


def _without(train: _Split, evaluation: _Split) -> list[int]:
    """The training rows whose question is not evaluated."""
    evaluated = set(evaluation.keys)
    kept = [place for place, key in enumerate(train.keys) if key not in evaluated]
    if len(kept) < len(train.keys) and train.source != evaluation.source:
        logger.warning(
            "%d rows of %s are left out of training: %s asks the same",
            len(train.keys) - len(kept),
            train.source,
            evaluation.source,
        )
    return kept


class _Loader:
    """What the settings say about rows, applied to each split."""

    def __init__(self, config: DatasetEnvConfig, needs_answer: bool) -> None:
        self._config = config
        self._reader = RowReader(config)
        self._needs_answer = needs_answer
        self._given = [
            example for each in config.few_shot_examples for example in solved(each["prompt"], each["answer"])
        ]

    def split(self, source: Source) -> _Split:
        """Load a split and find its usable rows. Raises: ConfigError where there are none."""
        rows = load_rows(source)
        if len(rows) == 0:
            raise ConfigError(f"{source.setting}: {source} has no rows")
        self._check_fields(rows, source)
        indices, keys = [], []
        for index, row in enumerate(self._scanned(rows)):
            if self._is_usable(row):
                indices.append(index)
                keys.append(hashlib.blake2b(self._reader.question_text(row).encode(), digest_size=16).digest())
        if not indices:
            raise ConfigError(f"{source}: no row has a question{' and a right answer' if self._needs_answer else ''}")
        if len(indices) < len(rows):
            logger.warning("%d rows of %s lack question or answer: left out", len(rows) - len(indices), source)
        return _Split(source, rows, indices, keys)

    def examples(self, train: _Split, kept: list[int]) -> tuple[list[Message], list[int]]:
        """The solved examples to show, and the rows that are left to train on."""
        count = self._config.few_shot
        if count == 0:
            return self._given, kept
        if not self._names_answers:
            raise ConfigError("few_shot shows solved rows, so it needs answer_field")
        keys = [train.keys[place] for place in kept]
        different = list(dict.fromkeys(keys))
        if len(different) <= count:
            raise ConfigError(f"few_shot: {count} solved rows are to be shown, of {len(different)} different questions")
        chosen = random.Random(f"{self._config.seed}:few_shot").sample(different, count)
        shown = [message for place in first_of_each(keys, set(chosen)) for message in self._solved(train, kept[place])]
        return [*self._given, *shown], [place for place, key in zip(kept, keys, strict=True) if key not in set(chosen)]

    def question(self, shots: list[Message], source: Source, index: int, row: Mapping[str, Any]) -> Question:
        """A row as it is put to the model."""
        known = next((row[name] for name in _IDS if isinstance(row.get(name), (str, int))), None)
        return Question(
            id=str(known) if known is not None else source.row_id(index),
            conversation=self._reader.conversation(row, shots),
            prefill=self._config.prefill or "",
            answer=self._reader.answer(row),
            ground_truth=self._reader.ground_truth(row),
            row=row,
        )

    def _solved(self, train: _Split, place: int) -> list[Message]:
        row = train.rows[train.indices[place]]
        question = self.question([], train.source, place, row)
        return solved(question.prompt, question.answer if question.answer is not None else question.ground_truth)

    @property
    def _names_answers(self) -> bool:
        config = self._config
        return bool(config.answer_field or config.answer_template or config.ground_truth_field)

    def _check_fields(self, rows: Rows, source: Source) -> None:
        config, columns, first = self._config, rows.column_names, rows[0]
        where = str(source)
        if config.prompt_template is None:
            check_field("prompt_field", config.prompt_field, columns, first, where)
        for setting, path in (("answer_field", config.answer_field), ("ground_truth_field", config.ground_truth_field)):
            if path is not None and (self._needs_answer or column_of(path, columns)):
                check_field(setting, path, columns, first, where)
        if self._needs_answer and not self._names_answers and self._reader.answer(first) is None:
            raise ConfigError(
                f"answer_field is not set, and a reward function needs the right answers; the columns of {where} are: "
                f"{', '.join(columns)}"
            )
        self._reader.conversation(first)

    def _scanned(self, rows: Rows) -> Iterator[Mapping[str, Any]]:
        """Every row, of which only the columns are read that the settings name."""
        config = self._config
        if config.prompt_template is None and config.answer_template is None:
            paths = [path for path in (config.prompt_field, config.answer_field, config.ground_truth_field) if path]
            named = {column_of(path, rows.column_names) for path in paths}
            rows = rows.select_columns([column for column in rows.column_names if column in named])
        for batch in rows.iter(READ_AT_ONCE):
            yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))

    def _is_usable(self, row: Mapping[str, Any]) -> bool:
        return self._reader.is_question(row) and (not self._needs_answer or self._reader.has_answer(row))
