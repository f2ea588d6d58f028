"""Fixtures of the whole suite."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Let signals reach the programs under test also where a shell or ``nohup`` started the suite without them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The project is written for asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def room_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of one run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def place_of_the_test(request: pytest.FixtureRequest, room_of_the_run: Path) -> Iterator[None]:
    """Let no other worker run a test beside one that is marked ``alone``."""
    kind = fcntl.LOCK_SH if request.node.get_closest_marker("alone") is None else fcntl.LOCK_EX
    with (room_of_the_run / "door").open("w") as door, (room_of_the_run / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for the room keeps the door, so that nobody overtakes
        fcntl.flock(room, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
