"""The trainer's side of the trajectory server.

A batch is acknowledged by asking for the next one; an answer that was lost on the way is asked for again under the
same acknowledgement, so the server gives its groups out once more. The server may go away for a while: calls are
repeated, and one that has forgotten this trainer is registered with again, at the step the trainer has reached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from atroposlib.wire import Registration, ScoredDataGroup
from trainer.config import TrainerConfig
from trainer.errors import ServiceError, UsageError
from trainer.http import JsonClient, Refused, Unreachable

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_POLL_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_SAY_AFTER_S = 30.0
_NOTHING_YET = "0"
"""Acknowledges no batch, so that a first answer which is lost on the way is given again."""


class Stopped(Exception):
    """The wait was broken off on request."""


class TrajectorySource:
    """Batches from one trajectory server, in order.

    ``patience_s``: how long the server may stay away before that is an error. Setting ``stop`` ends any wait.
    """

    def __init__(self, client: JsonClient, *, patience_s: float = 600.0) -> None:
        self.stop = threading.Event()
        self._client = client
        self._patience_s = patience_s
        self._registration: Registration | None = None
        self._last_batch: str | None = _NOTHING_YET

    def register(self, registration: Registration) -> None:
        """Announce the run. Raises: UsageError, ServiceError, Stopped."""
        self._registration = registration
        try:
            self._persistently(lambda: self._client.post("/register", registration.model_dump()))
        except Refused as error:
            if error.status not in (404, 405):
                raise
            raise UsageError(
                f"--atropos-url: what answers there is no trajectory server ({error}). Start one with run-api, or "
                "correct the address."
            ) from error

    def next_batch(self, step: int) -> list[ScoredDataGroup]:
        """Wait for the batch of step ``step``. Raises: ServiceError, Stopped."""
        started = said = time.monotonic()
        while True:
            answer = self._persistently(lambda: self._client.get("/batch", ack=self._last_batch))
            if answer.body.get("status") == "error":
                self._register_again(step, answer.body.get("message"))
                continue
            if answer.body.get("batch"):
                self._last_batch = answer.headers.get("x-batch-id")
                batch: list[ScoredDataGroup] = answer.body["batch"]
                return batch
            if time.monotonic() - said > _SAY_AFTER_S:
                said = time.monotonic()
                logger.info("Waiting for a batch since %.0f s. %s", said - started, self._why_none())
            self._wait(_POLL_S)

    def wait_for_environments(self) -> None:
        """Wait until none is connected: one that evaluates at the end of a run still asks the engine.

        Raises: Stopped.
        """
        said = False
        while connected := self._connected():
            if not said:
                logger.info(
                    "Training is done; the engine stays until the environments have ended (%d left). Ctrl-C ends it.",
                    connected,
                )
                said = True
            self._wait(_POLL_S)

    def _connected(self) -> int:
        try:
            return int(self._client.get("/status").body.get("connected_envs", 0))
        except (Unreachable, Refused):
            return 0

    def _why_none(self) -> str:
        status = self._persistently(lambda: self._client.get("/status")).body
        wanted = "" if self._registration is None else f" of {self._registration.batch_size}"
        waiting = f"{status.get('queued_sequences', status.get('queue_size'))}{wanted} sequences of a batch wait"
        reason = status.get("stalled") or waiting
        return f"The server says: {reason}; {status.get('connected_envs', 'unknown')} environments are connected."

    def _register_again(self, step: int, message: str | None) -> None:
        if self._registration is None:
            raise ServiceError(f"The trajectory server answers: {message}")
        logger.warning("The trajectory server has forgotten this trainer (%s); registering again.", message)
        self._last_batch = _NOTHING_YET
        self.register(self._registration.model_copy(update={"starting_step": step}))

    def _persistently(self, call: Callable[[], _T]) -> _T:
        """Repeat ``call`` while the server is away or ails, up to ``patience_s``."""
        started = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and error.status < 500:
                    raise
                waited = time.monotonic() - started
                if waited > self._patience_s:
                    raise ServiceError(
                        f"The trajectory server has not answered for {waited:.0f} s: {error}. Start it with run-api, "
                        "or name another one with --atropos-url."
                    ) from error
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("Waiting for the trajectory server: %s", error)
            self._wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Stopped


def registration_of(config: TrainerConfig, run_id: str, step: int) -> Registration:
    """What this trainer tells the server about its run. The server knows one that comes back by group and folder."""
    return Registration(
        wandb_group=config.wandb_group or f"grpo-{run_id}",
        wandb_project=config.wandb_project or "atropos",
        batch_size=config.sequences_per_step,
        max_token_len=config.seq_len,
        checkpoint_dir=str(config.save_path.resolve()),
        save_checkpoint_interval=config.checkpoint_interval,
        starting_step=step,
        num_steps=config.training_steps,
        # a group that lost a member does not wait until the sizes add up
        batching="fifo",
    )
