"""One training run, as the server knows it: what the trainer registered, and how far it is."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field

from atroposlib.api.store import Record
from atroposlib.wire import Registration


def _new_run_id() -> str:
    return secrets.token_hex(8)


@dataclass
class Run:
    """A run; without a registration it has not begun, but groups may wait for it already."""

    registration: Registration | None = None
    run_id: str = field(default_factory=_new_run_id)
    trainer_started: bool = False
    """Whether the trainer has asked for a batch; environments may register from then on."""
    step: int = 0
    last_batch_id: int = 0

    def belongs_to(self, registration: Registration) -> bool:
        """Whether the trainer that registers is the one of this run (come back), or the first."""
        mine = self.registration
        if mine is None:
            return True
        return (mine.wandb_group, mine.wandb_project, mine.checkpoint_dir) == (
            registration.wandb_group,
            registration.wandb_project,
            registration.checkpoint_dir,
        )

    def successor(self) -> Run:
        """A run that has not begun; its batches have ids that this one never used."""
        return Run(last_batch_id=self.last_batch_id)

    def record(self) -> Record:
        """A JSON object from which ``from_record`` makes this run again."""
        return {
            "registration": None if self.registration is None else self.registration.model_dump(),
            "run_id": self.run_id,
            "trainer_started": self.trainer_started,
            "step": self.step,
            "last_batch_id": self.last_batch_id,
        }

    @classmethod
    def from_record(cls, record: Record) -> Run:
        """Raises: KeyError, ValueError for a record that is none."""
        registration = record["registration"]
        return cls(
            registration=None if registration is None else Registration.model_validate(registration),
            run_id=record["run_id"],
            trainer_started=record["trainer_started"],
            step=record["step"],
            last_batch_id=record["last_batch_id"],
        )


@dataclass
class GroupCounts:
    """What became of groups since the server started."""

    received: int = 0
    repeated: int = 0
    delivered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
