"""Which environments take part: who they are, when they were last seen, and what share of the batches is theirs.

An environment is alive while it has not disconnected and was seen (it asked for its status, or sent groups) within the
expiry. One that is not blocks nobody: its share is free, its weight is not counted. It is alive again when it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from atroposlib.errors import UnknownEnvironment
from atroposlib.wire import EnvRegistration

MIN_WEIGHT: Final = 0.01
"""No environment that takes part is told less, so that none is starved."""


@dataclass
class Environment:
    """One registered environment. ``last_seen`` is by the registry's clock, in seconds."""

    env_id: int
    desired_name: str
    wandb_name: str
    max_token_length: int
    weight: float
    group_size: int
    min_batch_allocation: float | None
    last_seen: float
    disconnected: bool = False

    @property
    def claim(self) -> float:
        """Its part in the weighting: weight times context length; a negative weight claims nothing."""
        return max(0.0, self.weight) * max(0, self.max_token_length)

    def record(self) -> dict[str, Any]:
        """A JSON object from which ``EnvironmentRegistry.restore`` makes this environment again."""
        return asdict(self)


class EnvironmentRegistry:
    """The environments of one run, numbered from 0 in order of registration."""

    def __init__(self, expiry_s: float, clock: Callable[[], float]) -> None:
        self._expiry_s = expiry_s
        self._clock = clock
        self._all: list[Environment] = []

    def register(self, registration: EnvRegistration) -> Environment:
        """Add an environment; its name gets a number, counted among those that asked for the same name."""
        desired = registration.desired_name or "env"
        namesakes = sum(environment.desired_name == desired for environment in self._all)
        environment = Environment(
            env_id=len(self._all),
            desired_name=desired,
            wandb_name=f"{desired}_{namesakes}",
            max_token_length=registration.max_token_length,
            weight=registration.weight,
            group_size=registration.group_size,
            min_batch_allocation=registration.min_batch_allocation,
            last_seen=self._clock(),
        )
        self._all.append(environment)
        return environment

    def restore(self, record: Mapping[str, Any]) -> None:
        """Add an environment from its record; it counts as just seen."""
        self._all.append(Environment(**{**record, "last_seen": self._clock()}))

    def find(self, env_id: int) -> Environment:
        """Raises: UnknownEnvironment."""
        if not 0 <= env_id < len(self._all):
            raise UnknownEnvironment(f"unknown env_id {env_id}: POST /register-env again")
        return self._all[env_id]

    def see(self, env_id: int) -> Environment:
        """Note a sign of life. Raises: UnknownEnvironment."""
        environment = self.find(env_id)
        environment.last_seen = self._clock()
        return environment

    def alive(self) -> list[Environment]:
        """Those that take part now."""
        oldest = self._clock() - self._expiry_s
        return [each for each in self._all if not each.disconnected and each.last_seen >= oldest]

    def batch_fractions(self) -> dict[int | None, float]:
        """The share of each batch that living environments asked for, by id."""
        return {e.env_id: e.min_batch_allocation for e in self.alive() if e.min_batch_allocation is not None}

    def weight_of(self, environment: Environment) -> float:
        """Its part of all claims, at least ``MIN_WEIGHT``; 1 where it asked not to be weighted (a negative weight)."""
        if environment.weight < 0:
            return 1.0
        total = sum(each.claim for each in self.alive())
        return min(1.0, max(MIN_WEIGHT, environment.claim / total)) if total > 0 else 1.0

    def clear(self) -> None:
        """Forget them all; numbers begin at 0 again."""
        self._all.clear()
