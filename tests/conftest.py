"""Fixtures of the whole suite."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The project is written for asyncio."""
    return "asyncio"
