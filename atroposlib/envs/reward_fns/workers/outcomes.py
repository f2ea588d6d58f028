"""Calls, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """The arguments of one call, and the seconds it may take."""

    args: tuple[Any, ...]
    limit_s: float


@dataclass(frozen=True)
class Done:
    """It returned ``value`` after ``seconds``."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Failed:
    """It raised, took too long, or ended its process; ``reason`` is a phrase that goes after a name and a colon."""

    reason: str
    cause: BaseException | None = None


Outcome = Done | Failed


def reason_of(error: BaseException) -> str:
    """``ValueError: its message``, or the message alone where the error is one of this project."""
    if isinstance(error, MemoryError):
        return "took more memory than it may have"
    module = type(error).__module__
    text = str(error) if module.startswith("atroposlib.") else f"{type(error).__name__}: {error}"
    return text if len(text) <= 2000 else text[:2000] + "…"
