"""Fixtures of the tests of engine clients."""

import socket

import pytest


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
