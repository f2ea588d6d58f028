"""A number that says why."""

from __future__ import annotations

from typing import Any


class Verdict(float):
    """A reward together with what it was made of: what was read from the answer, and what from the truth.

    It is a float in every other way, so ``compute`` may return numbers and verdicts alike.
    """

    __slots__ = ("why",)
    why: str

    def __new__(cls, value: float, why: str = "") -> Verdict:
        self = super().__new__(cls, value)
        self.why = why
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Verdict, (float(self), self.why))

    def __repr__(self) -> str:
        return f"Verdict({float(self)!r}, {self.why!r})"


def quoted(text: object, most: int = 80) -> str:
    """A text as part of an explanation: on one line, in quotes, cut in its middle where it is long."""
    line = str(text)
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[-most // 2 :]}"
    line = line.replace("\n", "⏎")
    if not line.isprintable():  # what would move the cursor or change colours where it is shown
        line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return f"“{line}”"
