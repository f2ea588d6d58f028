"""The items of an evaluation."""

from __future__ import annotations

import logging
import random
from typing import Any

from atroposlib.envs.base import BaseEnv
from atroposlib.envs.items import next_item, no_items
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)


async def evaluation_items(env: BaseEnv, size: int | None) -> list[Any]:
    """What ``setup`` held out, or a seeded draw of all items where it held none out. Raises: ConfigError."""
    held_out = getattr(env, "eval_items", None) or getattr(env, "_eval_items", None)
    if held_out:
        return list(held_out)[:size]
    logger.warning("setup() set no eval_items: the evaluation takes training items, which are not held out.")
    items = list(getattr(env, "items", None) or getattr(env, "_items", None) or ())
    if items:
        return random.Random(env.config.seed).sample(items, min(size or len(items), len(items)))
    drawn = [item for _ in range(size or 1) if (item := await next_item(env)) is not None]
    if not drawn:
        raise ConfigError(no_items(env))
    return drawn
