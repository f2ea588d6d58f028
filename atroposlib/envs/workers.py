"""Who works on what: every task of a run has its owner here.

A ``WorkerPool`` runs one task per item and at most one evaluation, in one task group. Leaving the pool ends all of
them and waits for their clean-up. An item that takes too long is cancelled, counted, and tried once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from atroposlib.envs.config import EvalHandlingEnum
from atroposlib.envs.groups import Failures, count_failure, failure_reason, first_error
from atroposlib.errors import ConfigError
from atroposlib.type_definitions import Item

logger = logging.getLogger(__name__)
T = TypeVar("T")

_DURATIONS_KEPT = 1000


@dataclass
class RunningItem:
    """An item that a worker has in hand. ``started`` is ``time.monotonic()``."""

    item: Item
    number: int
    """Counts the items of this run, from 0."""
    repeated: bool = False
    """Whether it has timed out before."""
    started: float = field(default_factory=time.monotonic)
    groups: int = 0
    """Groups made from it that were sent or recorded, so far."""
    left_out: int = 0
    """Groups made from it that were not, such as those whose scores are all the same."""


current_item: ContextVar[RunningItem | None] = ContextVar("current_item", default=None)
"""The item that the running task works on; ``None`` outside of workers."""


class WorkerPool:
    """The workers of one run, and its evaluation. Use as ``async with pool:``; what a task raises, the pool raises."""

    def __init__(self, eval_handling: EvalHandlingEnum, eval_limit_ratio: float, failures: Failures) -> None:
        self.workers: set[asyncio.Task[None]] = set()
        self.running_items: dict[str, RunningItem] = {}
        self.backlog: list[Item] = []
        self.evaluation: asyncio.Task[None] | None = None
        self.durations: deque[float] = deque(maxlen=_DURATIONS_KEPT)
        """Seconds that the last items took, those that failed too."""
        self.started = 0
        """Items begun so far."""
        self.failed_in_a_row = 0
        """Items that failed since the last one that gave any group."""
        self._handling = eval_handling
        self._ratio = eval_limit_ratio
        self._failures = failures
        self._evaluation_due = False
        self._timed_out: dict[int, Item] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> WorkerPool:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None

    # workers

    def room(self, limit: int) -> int:
        """How many more items may be started now, where ``limit`` may run at once."""
        if self._evaluation_due or self.evaluation is not None:
            if self._handling is EvalHandlingEnum.STOP_TRAIN:
                return 0
            if self._handling is EvalHandlingEnum.LIMIT_TRAIN:
                limit = int(limit * self._ratio)
        return max(0, limit - len(self.workers))

    def start(self, item: Item, work: Callable[[str], Awaitable[object]], timeout_s: float) -> RunningItem:
        """Work on an item, by its id in ``running_items``; 0 or fewer seconds mean no limit."""
        repeated = self._timed_out.pop(id(item), None) is not None
        running = RunningItem(item, self.started, repeated)
        self.started += 1
        item_id = str(uuid.uuid4())
        self.running_items[item_id] = running
        task = self._tasks.create_task(self._work(item_id, running, work, timeout_s), name=f"item {running.number}")
        self.workers.add(task)
        task.add_done_callback(self.workers.discard)
        return running

    async def _work(
        self, item_id: str, running: RunningItem, work: Callable[[str], Awaitable[object]], timeout_s: float
    ) -> None:
        current_item.set(running)
        limit = asyncio.timeout(timeout_s if timeout_s > 0 else None)
        try:
            async with limit:
                await work(item_id)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of one rollout; logged and counted)
            if limit.expired():
                self._give_back(running, timeout_s)
            else:
                count_failure(self._failures, failure_reason(error), error, "group")
        finally:
            self.running_items.pop(item_id, None)
            self.failed_in_a_row = 0 if running.groups or running.left_out else self.failed_in_a_row + 1
            self.durations.append(time.monotonic() - running.started)

    def _give_back(self, running: RunningItem, timeout_s: float) -> None:
        count_failure(self._failures, "timeout", None, f"group after {timeout_s:g} s")
        if not running.repeated and running.groups == 0:
            self._timed_out[id(running.item)] = running.item
            self.backlog.append(running.item)

    def cancel_workers(self) -> None:
        """End all workers; the pool's exit waits for their clean-up."""
        for worker in self.workers:
            worker.cancel()

    async def wait(self, seconds: float) -> None:
        """Return when a task has ended, or after ``seconds``."""
        tasks: set[asyncio.Task[None]] = {*self.workers, *([self.evaluation] if self.evaluation else [])}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    # the evaluation

    def request_evaluation(self) -> None:
        """Evaluate as soon as ``start_due_evaluation`` finds that it may begin; requests do not add up."""
        self._evaluation_due = True

    def start_due_evaluation(self, evaluate: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin the evaluation that was asked for, unless one runs, or workers must end first (STOP_TRAIN)."""
        waits = self._handling is EvalHandlingEnum.STOP_TRAIN and bool(self.workers)
        if not self._evaluation_due or self.evaluation is not None or waits:
            return
        self._evaluation_due = False
        self.evaluation = self._tasks.create_task(self._evaluate(evaluate), name="evaluation")

    async def _evaluate(self, evaluate: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await evaluate()
        finally:
            self.evaluation = None


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end even where the caller is cancelled meanwhile; the cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: BLE001  (raised by result() below)
            break
    if cancelled is not None:
        _tell_of(None if task.cancelled() else task.exception())
        raise cancelled
    return task.result()


def _tell_of(failure: BaseException | None) -> None:
    """What a clean-up ended with that nobody waits for any more; a mistake of the user needs no traceback."""
    if isinstance(failure, ConfigError):
        logger.error("%s", failure)
    elif failure is not None:
        logger.error("clean-up failed", exc_info=failure)
