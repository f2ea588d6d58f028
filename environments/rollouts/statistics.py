"""What the rollouts since the last log looked like, in numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from environments.agent_loop import AgentResult
from environments.agent_loop.result import StopReason

SHOWN_ERRORS = 20
SHOWN_CHARS = 2_000


@dataclass
class RolloutStatistics:
    """Sums over rollouts."""

    rollouts: int = 0
    turns: int = 0
    finished: int = 0
    tool_errors: int = 0
    broken_histories: int = 0
    """Rollouts whose history changed, so that they became several sequences."""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_ERRORS))

    def add(self, result: AgentResult, sequences: int) -> None:
        """Count a valid rollout that gave ``sequences`` sequences."""
        self.rollouts += 1
        self.turns += result.turns_used
        self.finished += result.stop_reason is StopReason.FINISHED
        self.broken_histories += sequences > 1
        self.tool_errors += len(result.tool_errors)
        for error in result.tool_errors:
            self.errors.append(f"turn {error.turn}, {error.tool_name}({error.arguments[:150]}): {error.error[:300]}")

    def describe(self) -> dict[str, float | str]:
        """Metrics of these rollouts; only the error count where there were none."""
        metrics: dict[str, float | str] = {"train/tool_errors_count": self.tool_errors}
        if self.rollouts:
            metrics["train/turns_mean"] = self.turns / self.rollouts
            metrics["train/finished_naturally"] = self.finished / self.rollouts
            metrics["train/broken_history_rate"] = self.broken_histories / self.rollouts
        if self.errors:
            metrics["train/tool_error_details"] = "\n".join(self.errors)[:SHOWN_CHARS]
        return metrics
