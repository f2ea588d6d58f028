"""What can go wrong in the trainer and its engine.

TrainerError
├── UsageError            a flag or file is wrong; the program ends with exit code 2
│   └── CheckpointError   a checkpoint cannot be read, or something cannot be written beside it
├── BatchRefused          training data that must not be trained on; the message says which and why
├── ServiceError          the trajectory server or an external engine refused or stayed away
└── EngineError           the embedded engine could not answer; carries the HTTP status
    ├── InvalidRequest    400: the request cannot be served as asked
    ├── UnknownModel      404: no model of that name
    ├── EngineBusy        503: the waiting line is full
    └── EngineFailed      500: the model raised, or the engine is closed
"""

from __future__ import annotations

import signal
from typing import ClassVar


class TrainerError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(TrainerError, ValueError):
    """A flag or a file is wrong; the message names it and what to change."""


class BatchRefused(TrainerError, ValueError):
    """Data that would train on something other than what the engine sampled."""


class CheckpointError(UsageError):
    """The folder of the run cannot be written, or holds no checkpoint that training can go on from."""


class ServiceError(TrainerError):
    """A service the trainer talks to refused a call, or stayed away for longer than it may."""


class Interrupted(TrainerError):
    """The run was asked to end by a signal, and has saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"Ended by {signal.Signals(signal_number).name}.")
        self.exit_code = 128 + signal_number


class EngineError(TrainerError):
    """A request that the embedded engine did not complete."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "InternalServerError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(EngineError, ValueError):
    """The request cannot be served as asked."""

    status = 400
    kind = "BadRequestError"


class UnknownModel(EngineError, LookupError):
    """The engine serves no model of that name."""

    status = 404
    kind = "NotFoundError"


class EngineBusy(EngineError):
    """As many requests wait as may wait."""

    status = 503
    kind = "ServiceUnavailableError"


class EngineFailed(EngineError):
    """The model raised while it computed, or the engine was closed."""
