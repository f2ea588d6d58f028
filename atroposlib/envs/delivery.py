"""The last yards of a group: checked, noted, recorded, sent. What is left out is counted under a reason."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from atroposlib.envs.groups import Admission, as_groups, readable_messages
from atroposlib.envs.workers import current_item
from atroposlib.errors import GroupRefused
from atroposlib.tracking import NullTracker
from atroposlib.type_definitions import Item
from atroposlib.wire import IGNORED_MASK, ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_LENGTHS_KEPT = 10_000


async def deliver(env: BaseEnv, collected: object, item: Item, *, sending: bool, longest: int) -> None:
    """Record and, where ``sending``, send every group that may be; ``longest`` is in tokens, 0 or less: no limit."""
    admission = Admission(env.config, longest, sending)
    for group in as_groups(collected):
        refusal = admission.refusal(group)
        if refusal is not None:
            leave_out(env, refusal)
            continue
        try:
            await _note(env, group, item)
        except asyncio.CancelledError:
            if sending:  # it is whole: what is unsent at the end of the process is sent then
                env.queue_client.keep(group)
            raise
        if not sending or await _send(env, group):
            env.items_sent_this_step += 1


def leave_out(env: BaseEnv, reason: str) -> None:
    """Count a group that is neither recorded nor sent; say so the first time."""
    env.dropped_groups[reason] += 1
    running = current_item.get()
    if running is not None:
        running.left_out += 1
    level = logging.WARNING if env.dropped_groups[reason] == 1 else logging.DEBUG
    logger.log(level, "a group is left out: %s", reason)


async def _send(env: BaseEnv, group: ScoredDataGroup) -> bool:
    """Whether the server has the group now; one that the queue client keeps is counted when it is sent."""
    try:
        return await env.queue_client.send(group)
    except GroupRefused as error:
        leave_out(env, "refused by the trajectory server")
        logger.warning("%s", error)
        return False


async def _note(env: BaseEnv, group: ScoredDataGroup, item: Item) -> None:
    """Everything that is kept about a group besides sending it."""
    running = current_item.get()
    if running is not None:
        running.groups += 1
    if env.config.include_messages:
        _add_messages(env, group)
    lengths = [sum(mask != IGNORED_MASK for mask in masks) for masks in group.get("masks") or ()]
    env.completion_lengths.extend(lengths)
    del env.completion_lengths[:-_LENGTHS_KEPT]
    if not isinstance(env.tracker, NullTracker):
        await env.add_rollouts_for_wandb(group, item)
    if env.recorder is not None:
        await env.recorder.record(group, running.number if running and env.process_mode else None)


def _add_messages(env: BaseEnv, group: ScoredDataGroup) -> None:
    """Where a group has none, decode its tokens, if a tokenizer has been loaded anyway."""
    if group.get("messages") is None and group.get("tokens") and env.has_tokenizer:
        pairs = zip(group["tokens"], group["masks"], strict=True)
        group["messages"] = [readable_messages(tokens, masks, env.tokenizer.decode) for tokens, masks in pairs]
