"""An evaluation: items worked on at once, told in their order, and continued where it was killed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from atroposlib.envs.groups import Failures, first_error, told
from atroposlib.envs.offline import NothingCollected
from atroposlib.envs.recording import writing
from atroposlib.line_file import LineFile
from environments.agent_loop import AgentResult
from environments.agent_loop.result import Message, StopReason

logger = logging.getLogger(__name__)

Sample = dict[str, Any]
"""One line of ``samples.jsonl``; ``reward`` is None where the rollout was invalid, and ``error`` says why."""

FULL_REWARD = 1.0 - 1e-9
PROGRESS_FILE = "samples.partial.jsonl"


def sample_of(first_messages: Sequence[Message], result: AgentResult, reward: float) -> Sample:
    """What is kept of a graded rollout."""
    return {
        "prompt": first_messages[-1]["content"],
        "response": result.final_response,
        "reward": reward,
        "stop_reason": result.stop_reason.value,
        "turns": result.turns_used,
        "tools_used": result.tools_used,
        "tool_errors": len(result.tool_errors),
        "completion_tokens": result.usage.completion_tokens,
        "seconds": round(result.timings.total_s, 3),
        "messages": result.messages,
    }


def invalid_sample(first_messages: Sequence[Message], error: str) -> Sample:
    """What is kept of an item for which no rollout was valid."""
    return {"prompt": first_messages[-1]["content"], "response": "", "reward": None, "error": error}


def summarise(samples: Sequence[Sample]) -> dict[str, float]:
    """Means over the valid samples; the invalid ones are counted and never scored."""
    valid = [sample for sample in samples if sample["reward"] is not None]
    metrics: dict[str, float] = {"eval/num_samples": len(samples), "eval/num_invalid": len(samples) - len(valid)}
    if not valid:
        return metrics
    rewards = [float(sample["reward"]) for sample in valid]
    return metrics | {
        "eval/mean_reward": fmean(rewards),
        "eval/mean_reward_stderr": stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0,
        "eval/success_rate": fmean(reward >= FULL_REWARD for reward in rewards),
        "eval/mean_turns": fmean(sample["turns"] for sample in valid),
        "eval/finished_naturally": fmean(sample["stop_reason"] == StopReason.FINISHED for sample in valid),
        "eval/tool_errors_per_sample": fmean(sample["tool_errors"] for sample in valid),
        "eval/completion_tokens_per_sample": fmean(sample["completion_tokens"] for sample in valid),
    }


def tell_invalid(samples: Sequence[Sample], failures: Failures, *, allowed: bool) -> None:
    """Say how many items gave no valid rollout, and why. ``failures``: those of this run.

    Raises: NothingCollected where none gave one, so that nothing was found out, and that is not ``allowed``.
    """
    reasons = Counter(sample["error"] for sample in samples if sample["reward"] is None)
    if not reasons:
        return
    if reasons.total() == len(samples) and not allowed:
        raise NothingCollected(f"none of {len(samples)} items gave a valid rollout: {told(reasons, failures.last)}")
    logger.warning(
        "%d of %d items gave no valid rollout: %s", reasons.total(), len(samples), told(reasons, failures.last)
    )


async def run_in_order(
    items: Sequence[Any], work: Callable[[int, Any], Awaitable[Sample]], at_once: int
) -> list[Sample]:
    """``work(index, item)`` for each item, ``at_once`` of them at a time; answers in the order of the items.

    What one of them raises ends the others and is raised.
    """
    slots = asyncio.Semaphore(max(1, at_once))

    async def limited(index: int, item: Any) -> Sample:
        async with slots:
            return await work(index, item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(index, item)) for index, item in enumerate(items)]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]


class Progress:
    """Finished samples on disk, so that a killed evaluation goes on; they count only for the same ``settings``.

    ``failures`` are those of all items since it began, or went on.
    """

    def __init__(self, file: LineFile | None, done: Mapping[str, Sample], settings: str) -> None:
        self._file = file
        self._done = done
        self._settings = settings
        self.failures = Failures()

    @classmethod
    @contextmanager
    def in_folder(cls, folder: str | None, settings: Mapping[str, Any]) -> Iterator[Self]:
        """Read and continue the progress in ``folder``; without a folder nothing is kept. The end removes it."""
        fingerprint = json.dumps(settings, sort_keys=True, default=str)
        if folder is None:
            yield cls(None, {}, fingerprint)
            return
        path = Path(folder) / PROGRESS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        done, ended = dict(_read_progress(path)), False
        try:
            with closing(LineFile(path)) as file:
                yield cls(file, done, fingerprint)
            ended = True
        finally:
            if not ended and path.is_file() and path.stat().st_size:
                logger.warning("the answers so far are kept in %s; the same command goes on from them", path)
        path.unlink(missing_ok=True)

    def key(self, index: int, item: Any, messages: Sequence[Message]) -> str:
        """Names the work on one item."""
        work = json.dumps([self._settings, index, repr(item), messages], default=str)
        return hashlib.sha256(work.encode()).hexdigest()[:32]

    def find(self, key: str) -> Sample | None:
        return self._done.get(key)

    def add(self, key: str, sample: Sample) -> None:
        """Keep a finished sample; an invalid one is tried again by the next run. Raises: ConfigError."""
        if self._file is not None and sample["reward"] is not None:
            with writing("--env.data_dir_to_save_evals", self._file.path):
                self._file.append(json.dumps({"key": key, "sample": sample}, default=str).encode())


def _read_progress(path: Path) -> Iterator[tuple[str, Sample]]:
    """The finished samples; a line that a kill has cut is passed over."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        yield entry["key"], entry["sample"]
