"""One question to a model, and a data set seen as questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

Message = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A row as it is put to the model, and what its answer is judged by."""

    id: str
    conversation: tuple[Message, ...]
    """From the system message to the question itself."""
    prefill: str
    """The beginning of the answer; "" where the model begins it."""
    answer: Any
    """Of ``answer_field``; None where there is none."""
    ground_truth: Any
    """Of ``ground_truth_field``."""
    row: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """The text of the question itself."""
        return str(self.conversation[-1]["content"])

    def messages(self) -> list[Message]:
        """The conversation that the model goes on from, as a list of its own."""
        opened = [{"role": "assistant", "content": self.prefill}] if self.prefill else []
        return [*(dict(message) for message in self.conversation), *opened]


class QuestionSet(Sequence[Question]):
    """Rows of a data set, each made a question when it is asked for."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        indices: Sequence[int],
        make: Callable[[int, Mapping[str, Any]], Question],
    ) -> None:
        self._rows = rows
        self._indices = indices
        self._make = make

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> QuestionSet: ...
    def __getitem__(self, index: int | slice) -> Question | QuestionSet:
        if isinstance(index, slice):
            return QuestionSet(self._rows, self._indices[index], self._make)
        row = self._indices[index]
        return self._make(row, self._rows[row])

    def __iter__(self) -> Iterator[Question]:
        return (self[index] for index in range(len(self)))
