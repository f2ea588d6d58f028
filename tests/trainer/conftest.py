"""Engines over a random tiny model, by themselves and behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
import torch

from tests.trainer.tiny_model import make_model, make_tokenizer
from trainer.engine.hosting import EngineHost
from trainer.engine.scheduler import Engine, EngineConfig


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(make_model(), make_tokenizer(), EngineConfig(seed=0))
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def served() -> Iterator[tuple[Engine, str]]:
    """A started engine and its address; it answers to ``policy`` and ``alias``."""
    engine = Engine(make_model(), make_tokenizer(), EngineConfig(seed=0, max_waiting=100))
    host = EngineHost(engine, ["policy", "alias"], root="/where/it/was/loaded/from")
    host.start()
    yield engine, host.url
    host.close()


@pytest.fixture
async def http(served: tuple[Engine, str]) -> AsyncIterator[aiohttp.ClientSession]:
    """A client whose paths are those of ``served``."""
    async with aiohttp.ClientSession(served[1]) as session:
        yield session
