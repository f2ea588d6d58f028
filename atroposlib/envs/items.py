"""Items from ``get_next_item``, and clear words where a dataset turns out to be empty."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.envs.methods import called
from atroposlib.errors import ConfigError
from atroposlib.type_definitions import Item

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_OF_EMPTINESS = (IndexError, ZeroDivisionError, StopIteration, StopAsyncIteration)
"""What indexing, ``index % len(items)``, ``random.choice`` and iterators raise where there is nothing."""


async def next_item(env: BaseEnv) -> Item:
    """The next item; ``None`` if there is none now. Raises: ConfigError where nothing but emptiness is found."""
    try:
        item = await called(env, "get_next_item")
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, _OF_EMPTINESS) else error
        if env.pool.started or not isinstance(cause, _OF_EMPTINESS):
            raise
        raise ConfigError(f"{no_items(env)} ({_described(cause)})") from error
    if item is None and not env.pool.started:
        env.fruitless_draws += 1
        if env.fruitless_draws == 1:
            logger.warning("get_next_item() gives no first item yet")
    return item


def no_items(env: BaseEnv) -> str:
    """What to say, and where to look, where an environment has nothing to work on."""
    return f"{type(env).__name__} has no items: its dataset is empty, or setup() left none of it"


def _described(error: BaseException) -> str:
    """The error and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{words}, in {Path(frame.filename).name} line {frame.lineno}"
