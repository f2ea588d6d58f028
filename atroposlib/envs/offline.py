"""``process``: make a number of groups and write them to a file, without trainer and server; and ``evaluate``.

Several items are worked on at once. A group is in the file as soon as it is finished; at the end the file has the order
of the items, and exactly as many as were asked for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from atroposlib.envs.items import no_items
from atroposlib.envs.methods import called
from atroposlib.envs.recording import write_html
from atroposlib.envs.workers import RunningItem, uninterrupted
from atroposlib.errors import AtroposError, ConfigError

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

MAX_FRUITLESS: Final = 16
"""Items in a row that may give no group before no more are begun."""
_TICK_S = 1.0


class NothingCollected(AtroposError):
    """Item after item gave no group; the message says for which reasons."""


async def process(env: BaseEnv) -> None:
    """Make ``env.n_groups_to_process`` groups.

    Raises: NothingCollected when item after item gives none; ConfigError where there are no items.
    """
    await called(env, "setup")
    await env.setup_wandb()
    progress = _Progress(env)
    try:
        async with env.pool:
            await progress.run()
    finally:
        await uninterrupted(progress.finish())


class _Progress:
    """Which items are in hand, how many gave groups, how many in a row did not."""

    def __init__(self, env: BaseEnv) -> None:
        self.env = env
        self.running: list[RunningItem] = []
        self.done = 0
        self.fruitless = 0
        self.exhausted = False

    async def run(self) -> None:
        while True:
            if self.fruitless < MAX_FRUITLESS:
                await self._start_more()
            if not self.running:
                break
            await self.env.pool.wait(_TICK_S)
            await self._settle()
        if self.fruitless >= MAX_FRUITLESS:
            raise NothingCollected(f"{self.fruitless} items in a row gave no group: {self.env.failure_summary()}")
        if self.exhausted and not self.env.pool.started:
            raise ConfigError(no_items(self.env))
        if self.done < self.env.n_groups_to_process:
            logger.warning("no more items: %d of %d groups were made", self.done, self.env.n_groups_to_process)

    async def _start_more(self) -> None:
        env = self.env
        while self.done + len(self.running) < env.n_groups_to_process:
            if env.pool.room(env.max_num_workers) <= 0 or (self.exhausted and not env.backlog):
                return
            running = await env.start_worker()
            if running is None:
                self.exhausted = True
                return
            self.running.append(running)

    async def _settle(self) -> None:
        """Take note of the items that have ended, in their order."""
        in_hand = {id(running) for running in self.env.running_items.values()}
        ended = [running for running in self.running if id(running) not in in_hand]
        self.running = [running for running in self.running if id(running) in in_hand]
        for running in ended:
            if running.groups:
                await self._count_done()
            else:
                self.fruitless += 1

    async def _count_done(self) -> None:
        self.fruitless = 0
        self.done += 1
        self.env.curr_step = self.done
        await self.env.wandb_log()
        logger.info("group %d of %d", self.done, self.env.n_groups_to_process)

    async def finish(self) -> None:
        """Put the groups into their order, and make a page of them; they are safe, whatever becomes of the page."""
        recorder = self.env.recorder
        if recorder is None:
            return
        await asyncio.to_thread(recorder.close)
        if recorder.path is not None:
            try:
                await asyncio.to_thread(write_html, recorder.path)
            except Exception:
                logger.exception("no page was made for %s", recorder.path)


async def evaluate(env: BaseEnv) -> None:
    """Set up and evaluate, once. What ``evaluate`` raises is raised."""
    await called(env, "setup")
    await env.setup_wandb()
    await called(env, "evaluate")
