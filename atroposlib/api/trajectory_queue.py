"""The queue between environments and a trainer, as a plain class.

Promises:

- **Order.** Groups are delivered in order of arrival, in batches of exactly the registered number of sequences (see
  ``batching``), or in strict order if the trainer registered with ``batching: "fifo"``.
- **At least once.** A batch that was handed out stays *in flight* until it is acknowledged. It waits again when its
  answer could not be sent, and when the trainer registers again. ``next_batch(acknowledged=ID)`` acknowledges batch ID
  and brings back any other; without an id, asking for the next batch acknowledges what was sent in full before.
- **Once, where posts are repeated.** A group with a ``group_id`` is queued once, however often it is posted.
- **Runs.** The first POST /register begins a run and keeps what was posted before it. A later one with the same
  ``wandb_group``, ``wandb_project`` and ``checkpoint_dir`` is the same trainer come back: groups, environments and the
  batch in flight stay, and the step becomes its ``starting_step``. Any other one begins a new run: everything is
  dropped (and counted), environments have to register again.
- **Steps.** ``current_step`` is ``starting_step`` plus the batches delivered since.
- **Bounds.** The queue refuses groups beyond its limits. An environment that has less than an equal share of the limit
  waiting is let in even then (so at most twice the limit waits), because the batch may be waiting for it alone.
- **No silence.** Every group refused or dropped is counted under a reason; a queue that cannot make a batch although
  enough sequences wait says why.

All methods run on one thread and never wait. Changes are handed to the store as they happen; a server awaits
``flushed`` before it answers.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Final

from atroposlib import wire
from atroposlib.api.batch_maker import BatchMaker
from atroposlib.api.batching import sequence_shares
from atroposlib.api.environments import Environment, EnvironmentRegistry
from atroposlib.api.group_ids import GroupIds
from atroposlib.api.in_flight import Batch, Delivery, InFlight
from atroposlib.api.incoming import IncomingGroup
from atroposlib.api.run import GroupCounts, Run
from atroposlib.api.store import MemoryStore, Store, StoredGroup, StoredState
from atroposlib.api.waiting_groups import QueueLimits, WaitingGroups
from atroposlib.errors import GroupRefused, QueueFull, StoreError, TrainerNotRegistered, UnknownEnvironment

logger = logging.getLogger(__name__)

REFUSALS: Final[dict[type[Exception], str]] = {
    GroupRefused: "malformed_or_too_large",
    QueueFull: "queue_full",
    UnknownEnvironment: "unknown_env",
    StoreError: "store_failed",
}
"""The words under which refused groups are counted."""


class TrajectoryQueue:
    """See the module. ``clock`` gives seconds and never goes back. Raises: StoreError."""

    def __init__(
        self,
        store: Store | None = None,
        limits: QueueLimits | None = None,
        env_expiry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store or MemoryStore()
        self._limits = limits or QueueLimits()
        self._run = Run()
        self._environments = EnvironmentRegistry(env_expiry_s, clock)
        self._waiting = WaitingGroups()
        self._in_flight = InFlight()
        self._batch_maker = BatchMaker()
        self._group_ids = GroupIds(self._limits.group_ids)
        self._counts = GroupCounts()
        self._last_number = 0
        self._latest: bytes | None = None
        self._restore()

    # --- what a trainer calls ---

    def register(self, registration: wire.Registration) -> wire.Registered:
        """Begin a run, or take one up again (see the module)."""
        if not self._run.belongs_to(registration):
            self._forget_everything("new_run")
        self._take_back(self._in_flight.ids())
        self._run.registration = registration
        self._run.step = registration.starting_step
        self._drop(self._waiting.take_larger_than(registration.batch_size), "larger_than_batch")
        self._save_run()
        return {"uuid": secrets.randbits(53)}  # a JSON number that every parser keeps exact

    def next_batch(self, acknowledged: int | None = None) -> Batch | None:
        """Hand out the next batch, None while there is none; settles those handed out before (see the module).

        The caller reports what became of the answer by ``batch_sent`` or ``batch_lost``.

        Raises: TrainerNotRegistered.
        """
        registration = self._run.registration
        if registration is None:
            raise TrainerNotRegistered("Trainer not registered. Call /register first.")
        self._settle(acknowledged)
        chosen = self._batch_maker.choose(registration, self._waiting, self._environments)
        if chosen is None:
            self._note_trainer_started()
            return None
        return self._hand_out(self._waiting.take(chosen))

    def batch_sent(self, batch_id: int) -> None:
        """All of the answer went out to a trainer that was still there."""
        if batch_id in self._in_flight:
            self._in_flight.mark_sent(batch_id)
            self._store.mark_sent(batch_id)

    def batch_lost(self, batch_id: int) -> None:
        """The trainer was gone before all of the answer was sent: the groups wait again."""
        if batch_id in self._in_flight:
            self._take_back([batch_id])
            self._save_run()

    # --- what an environment calls ---

    def register_env(self, registration: wire.EnvRegistration) -> wire.EnvRegistered | wire.EnvWaits:
        """Give an environment its number and name, once the trainer has asked for a batch."""
        run = self._run
        if run.registration is None or not run.trainer_started:
            return {"status": "wait for trainer to start"}
        environment = self._environments.register(registration)
        self._store.save_environment(environment.env_id, environment.record())
        return {
            "status": "success",
            "env_id": environment.env_id,
            "wandb_name": environment.wandb_name,
            "checkpoint_dir": run.registration.checkpoint_dir,
            "starting_step": run.step,
            "checkpoint_interval": run.registration.save_checkpoint_interval,
            "num_steps": run.registration.num_steps,
            "run_id": run.run_id,
        }

    def disconnect_env(self, identifier: wire.EnvIdentifier) -> wire.Disconnected:
        """Take an environment out of shares and weights; its groups stay."""
        try:
            environment = self._see(identifier.env_id, identifier.run_id)
        except UnknownEnvironment as error:
            return {"status": "failure", "error": str(error)}
        environment.disconnected = True
        self._store.save_environment(environment.env_id, environment.record())
        return {"status": "success"}

    def add(self, groups: Sequence[IncomingGroup]) -> None:
        """Queue groups, all or none; those whose ``group_id`` is known already are passed over.

        Raises: UnknownEnvironment, GroupRefused (no batch can ever hold one of them), QueueFull.
        """
        try:
            for group in groups:
                self._check(group)
            new = self._group_ids.unknown_of(groups)
            self._check_room(new)
        except (UnknownEnvironment, GroupRefused, QueueFull) as error:
            self.count_refused(error, len(groups))
            raise
        self._counts.received += len(groups)
        self._counts.repeated += len(groups) - len(new)
        if new:
            self._append(new)

    def count_refused(self, error: Exception, groups: int = 1) -> None:
        """Count groups that are answered with this error."""
        self._counts.refused[REFUSALS.get(type(error), "other")] += groups

    def env_status(self, identifier: wire.EnvIdentifier) -> wire.EnvStatus:
        """How far the run is and how much waits, seen by one environment. Raises: UnknownEnvironment."""
        environment = self._see(identifier.env_id, identifier.run_id)
        own = self._waiting.of_env(environment.env_id).sequences
        return {
            "current_step": self._run.step,
            "queue_size": (own + self._available_from_others(environment)) // environment.group_size,
            "unallocated_fraction": 1.0 - min(1.0, sum(self._environments.batch_fractions().values())),
            "self_queue_size": own // environment.group_size,
            "max_group_size": self._waiting.largest,
            "env_weight": self._environments.weight_of(environment),
        }

    # --- what anyone calls ---

    def status(self) -> wire.ServerStatus:
        """Counters of the whole server."""
        total, counts = self._waiting.total, self._counts
        return {
            "current_step": self._run.step,
            "queue_size": total.groups,
            "queued_sequences": total.sequences,
            "queued_bytes": total.bytes,
            "batches_in_flight": len(self._in_flight),
            "groups_received": counts.received,
            "groups_repeated": counts.repeated,
            "groups_delivered": counts.delivered,
            "groups_refused": dict(counts.refused),
            "groups_dropped": dict(counts.dropped),
            "stalled": self._batch_maker.stalled,
            "connected_envs": len(self._environments.alive()),
            "run_id": self._run.run_id,
        }

    def info(self) -> wire.RunInfo:
        """The sizes the trainer registered with."""
        registration = self._run.registration
        if registration is None:
            return {"batch_size": -1, "max_token_len": -1}
        return {"batch_size": registration.batch_size, "max_token_len": registration.max_token_len}

    def wandb_info(self) -> wire.WandbInfo:
        """Where the run is logged."""
        registration = self._run.registration
        if registration is None:
            return {"group": None, "project": None}
        return {"group": registration.wandb_group, "project": registration.wandb_project}

    def latest_example(self) -> bytes | None:
        """The JSON of the group that arrived last; None before the first."""
        return self._latest

    def reset(self) -> None:
        """Forget the run with all that belongs to it."""
        self._forget_everything("reset")

    async def flushed(self) -> None:
        """Wait until all changes so far are safe in the store. Raises: StoreError."""
        await self._store.flushed()

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    # --- groups in ---

    def _see(self, env_id: int, run_id: str | None) -> Environment:
        if run_id is not None and run_id != self._run.run_id:
            raise UnknownEnvironment(f"env_id {env_id} is of another run: POST /register-env again")
        return self._environments.see(env_id)

    def _check(self, group: IncomingGroup) -> None:
        if group.env_id is not None:
            self._see(group.env_id, group.run_id)
        registration = self._run.registration
        if registration is not None and group.sequences > registration.batch_size:
            raise GroupRefused(
                f"tokens: {group.sequences} sequences in one group, but a batch holds {registration.batch_size}; "
                "make the group smaller, or register the trainer with a larger batch_size",
                "tokens",
            )

    def _check_room(self, groups: Sequence[IncomingGroup]) -> None:
        size = sum(len(group.body) for group in groups)
        if not self._limits.allow(len(groups), size):
            raise GroupRefused(f"{len(groups)} groups of {size} bytes in all are more than this server ever holds")
        total = self._waiting.total
        if self._limits.allow(total.groups + len(groups), total.bytes + size):
            return
        equal_share = self._limits.shared_by(len(self._environments.alive()))
        for env_id in {group.env_id for group in groups}:
            own = self._waiting.of_env(env_id)
            if not equal_share.allow(own.groups + len(groups), own.bytes + size):
                why = self._batch_maker.stalled or "it is slower than the environments"
                raise QueueFull(f"{total.groups} groups of {total.bytes} bytes wait for the trainer: {why}")

    def _append(self, groups: Sequence[IncomingGroup]) -> None:
        stored = [
            StoredGroup(number, group.sequences, group.env_id, group.group_id, group.body)
            for number, group in enumerate(groups, start=self._last_number + 1)
        ]
        self._last_number += len(stored)
        for group in stored:
            self._waiting.append(group)
        self._latest = stored[-1].body
        self._store.add(stored)
        forgotten = self._group_ids.remember(group.group_id for group in stored)
        if forgotten:
            self._store.forget_group_ids(forgotten)

    # --- batches out ---

    def _settle(self, acknowledged: int | None) -> None:
        received, lost = self._in_flight.settled_by(acknowledged)
        for batch_id in received:
            self._in_flight.pop(batch_id)
            self._store.remove_batch(batch_id)
        if lost:
            self._take_back(lost)
            self._save_run()

    def _note_trainer_started(self) -> None:
        if not self._run.trainer_started:
            self._run.trainer_started = True
            self._save_run()

    def _hand_out(self, groups: Sequence[StoredGroup]) -> Batch:
        self._run.last_batch_id += 1
        self._run.step += 1
        self._run.trainer_started = True
        self._counts.delivered += len(groups)
        batch = Batch(self._run.last_batch_id, groups)
        self._in_flight.add(batch)
        self._store.save_batch(batch.batch_id, [group.number for group in groups])
        self._save_run()
        return batch

    def _take_back(self, batch_ids: Iterable[int]) -> None:
        for batch_id in batch_ids:
            batch = self._in_flight.pop(batch_id)
            self._waiting.put_back(batch.groups)
            self._store.return_batch(batch_id)
            self._run.step -= 1
            self._counts.delivered -= len(batch.groups)

    def _available_from_others(self, environment: Environment) -> int:
        """Sequences of other environments, in whole packs of the largest group, beyond the shares kept for them."""
        largest, registration = self._waiting.largest, self._run.registration
        if largest == 1 or registration is None:
            return 0
        shares = sequence_shares(registration.batch_size, self._environments.batch_fractions())
        return sum(
            max(0, ceil(usage.sequences / largest) * largest - shares.get(env_id, 0))
            for env_id, usage in self._waiting.by_env.items()
            if env_id != environment.env_id
        )

    # --- beginning and end of a run ---

    def _drop(self, groups: Sequence[StoredGroup], reason: str) -> None:
        if groups:
            self._counts.dropped[reason] += len(groups)
            self._store.remove([group.number for group in groups])
            logger.warning("dropped %d groups: %s", len(groups), reason)

    def _forget_everything(self, reason: str) -> None:
        self._take_back(self._in_flight.ids())
        self._drop(list(self._waiting), reason)
        self._waiting = WaitingGroups()
        self._environments.clear()
        self._group_ids.clear()
        self._batch_maker = BatchMaker()
        self._run = self._run.successor()
        self._latest = None
        self._store.clear()
        self._save_run()

    def _save_run(self) -> None:
        self._store.save_run(self._run.record())

    def _restore(self) -> None:
        state = self._store.load()
        try:
            if state.run is not None:
                self._run = Run.from_record(state.run)
            for record in state.environments:
                self._environments.restore(record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the store holds records of another version: {error!r}; move it away") from error
        self._group_ids.remember(state.group_ids)
        self._restore_groups(state)
        self._save_run()

    def _restore_groups(self, state: StoredState) -> None:
        batch_of = {number: batch_id for batch_id, batch in state.batches.items() for number in batch.numbers}
        members: dict[int, list[StoredGroup]] = {batch_id: [] for batch_id in state.batches}
        for group in state.groups:
            if group.number in batch_of:
                members[batch_of[group.number]].append(group)
            else:
                self._waiting.append(group)
            self._last_number = group.number
            self._latest = group.body
        for batch_id, batch in state.batches.items():
            delivery = Delivery.SENT if batch.sent else Delivery.UNKNOWN
            self._in_flight.add(Batch(batch_id, members[batch_id]), delivery)
