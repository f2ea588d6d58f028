"""``serve``: collect groups for a trainer, as far ahead of it as is allowed, until it has taken its steps.

The server may be started later than the environment, be away for a while, or come back without its memory: the
environment waits, registers again and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from atroposlib.envs.methods import called
from atroposlib.envs.workers import uninterrupted
from atroposlib.errors import ConfigError, QueueError, QueueUnavailable, UnknownEnvironment
from atroposlib.wire import EnvRegistered, EnvRegistration

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

POLL_S = 0.25
SHORTEST_POLL_S = 0.02
REGISTER_POLL_S = 1.0
SAY_EVERY_S = 30.0
SEND_AT_END_S = 30.0
HESITATE_FROM = 16
"""Items in a row that may fail before the environment slows down."""
LONGEST_HESITATION_S = 15.0


async def serve(env: BaseEnv) -> None:
    """Set up, register, and collect until the trainer has taken its last batch."""
    await called(env, "setup")
    await env.register_env()
    await env.get_server_info()
    logger.info(
        "collecting for the trainer at %s: step %d of %d, batches of %d sequences, groups of %d",
        env.queue_client.url,
        env.curr_step,
        env.config.total_steps,
        env.config.batch_size,
        env.config.group_size,
    )
    if env.curr_step >= env.config.total_steps:
        logger.warning("the run at %s is over; for another one start a trainer first", env.queue_client.url)
    await env.setup_wandb()
    try:
        async with env.pool:
            await _collect(env)
        await env.wandb_log()
    finally:
        await uninterrupted(_leave(env))


async def _collect(env: BaseEnv) -> None:
    contact = Contact(env.queue_client.url, env.config.rollout_server_wait_s)
    silence = Silence()
    while True:
        if await _in_touch(env, contact):
            silence.break_for(env)
            await env.env_step_checks()
            if env.curr_step >= env.config.total_steps:
                break
            await env.add_train_workers()
        await asyncio.sleep(SHORTEST_POLL_S + _hesitation(env))
        await env.pool.wait(POLL_S)
    logger.info("%d steps are done", env.curr_step)
    env.pool.cancel_workers()
    while env.pool.workers:
        await env.pool.wait(POLL_S)
    env.pool.start_due_evaluation(partial(called, env, "evaluate"))
    while env.pool.evaluation is not None:
        with contextlib.suppress(QueueError):
            await env.get_status()  # a sign of life, for which the trainer keeps its engine
        await env.pool.wait(POLL_S)


def _hesitation(env: BaseEnv) -> float:
    """Seconds to wait before more items are begun: none, unless item after item fails, as when an engine is down."""
    failed = env.pool.failed_in_a_row
    if failed < HESITATE_FROM:
        return 0.0
    seconds = min(LONGEST_HESITATION_S, failed / HESITATE_FROM)
    logger.warning("%d items in a row failed; going on in %.0f s: %s", failed, seconds, env.failure_summary())
    return seconds


async def _in_touch(env: BaseEnv, contact: Contact) -> bool:
    """Ask the server how things stand; ``False`` if it did not say."""
    try:
        await env.get_status()
        if contact.registered_again:
            await env.get_server_info()
            contact.registered_again = False
        env.items_sent_this_step += await env.queue_client.send_unsent()
    except UnknownEnvironment:
        logger.warning("the trajectory server does not know this environment any more: registering again")
        await env.register_env()
        contact.registered_again = True
        return False
    except QueueUnavailable as error:
        contact.lost(error)
        return False
    contact.found()
    return True


class Silence:
    """Says now and then why nothing is sent, where groups are made and all of them left out."""

    def __init__(self) -> None:
        self._sent = 0
        self._left_out = 0
        self._since = time.monotonic()

    def break_for(self, env: BaseEnv) -> None:
        """Look at what became of the groups since the last look."""
        left_out = env.dropped_groups.total() + env.rollout_failures.total()
        if env.queue_client.sent > self._sent:
            self._sent, self._left_out, self._since = env.queue_client.sent, left_out, time.monotonic()
        elif time.monotonic() - self._since >= SAY_EVERY_S:
            if left_out > self._left_out:
                logger.warning("no group was sent for %.0f s. Left out so far: %s", SAY_EVERY_S, env.failure_summary())
            self._left_out, self._since = left_out, time.monotonic()


class Contact:
    """How long the trajectory server has been away, and whether that is too long."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url = url
        self._patience_s = patience_s
        self._last = time.monotonic()
        self._said = -math.inf
        self.registered_again = False
        """Whether the server is another one than before, so that what it said about the run must be asked again."""

    def found(self) -> None:
        """The server answered."""
        if self._said > self._last:
            logger.info("the trajectory server at %s answers again", self._url)
        self._last = time.monotonic()

    def lost(self, error: QueueUnavailable) -> None:
        """It did not. Raises: QueueUnavailable when it has been away for too long."""
        now = time.monotonic()
        if now - self._last > self._patience_s:
            raise QueueUnavailable(
                f"{error}; gave up after {self._patience_s:g} s (--env.rollout_server_wait_s)"
            ) from error
        self.say(str(error))

    def say(self, what: str) -> None:
        """Log what is waited for, now and then."""
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_S:
            logger.warning("waiting: %s", what)
            self._said = now


async def register(env: BaseEnv) -> EnvRegistered:
    """Register with the server, waiting for it and for the trainer as long as need be.

    Raises: QueueUnavailable when no server answered for ``rollout_server_wait_s`` seconds.
    """
    config = env.config
    registration = EnvRegistration(
        max_token_length=config.max_token_length,
        desired_name=env.run_name,
        weight=config.inference_weight,
        group_size=config.group_size,
        min_batch_allocation=config.min_batch_allocation,
    )
    contact = Contact(env.queue_client.url, config.rollout_server_wait_s)
    while True:
        try:
            answer = await env.queue_client.register(registration)
        except QueueUnavailable as error:
            contact.lost(error)
        else:
            contact.found()
            if answer is not None:
                return answer
            contact.say(f"{env.queue_client.url} has no trainer yet that asked for a batch")
        await asyncio.sleep(REGISTER_POLL_S)


def check_batch_size(group_size: int, batch_size: int) -> None:
    """Raises: ConfigError (a ValueError) where no group fits into a batch."""
    if batch_size <= 0:
        logger.warning("neither the trainer nor --env.batch_size says how big a batch is")
    elif group_size > batch_size:
        raise ConfigError(
            f"--env.group_size is {group_size}, but a batch of the trainer holds {batch_size} sequences; make the "
            "groups smaller or the batches bigger"
        )


def groups_ahead(env: BaseEnv) -> int:
    """How many more groups may be made before they would be too old when the trainer gets to them."""
    batch, group = env.derived_batch_size, env.config.group_size
    if batch <= 0:
        return env.max_num_workers
    allowed: int = max(math.ceil(batch / group), env.config.max_batches_offpolicy * batch // group)
    waiting: int = env.status_dict["queue_size"]
    return allowed - waiting - env.queue_client.unsent


def crossed(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of ``interval`` lies in (before, now]."""
    return interval > 0 and now // interval > before // interval


async def _leave(env: BaseEnv) -> None:
    """Send what is left, say goodbye, and name what could not be delivered."""
    queue = env.queue_client
    try:
        async with asyncio.timeout(SEND_AT_END_S):
            await queue.send_unsent()
            await queue.disconnect()
    except (QueueError, ConfigError, TimeoutError) as error:
        logger.info("could not say goodbye to the trajectory server: %s", error)
    if queue.unsent:
        logger.error("%d groups could not be sent to %s and are lost with this process", queue.unsent, queue.url)
