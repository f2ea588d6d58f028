"""What the tests of boxes share."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from sandboxes import SandboxUnavailable, check_backend

CLOSED_BACKENDS: list[Any] = [
    pytest.param("bubblewrap", marks=pytest.mark.namespaces),
    pytest.param("docker", marks=pytest.mark.docker),
]
BACKENDS: list[Any] = [*CLOSED_BACKENDS, "local"]


def only(backend: str) -> None:
    """Let the tests that run on every backend run on this one alone; called before they are collected."""
    CLOSED_BACKENDS[:] = BACKENDS[:] = [backend]


@functools.cache
def why_not(backend: str) -> str | None:
    """Why boxes of this backend cannot run here, or None."""
    try:
        check_backend(backend)
    except SandboxUnavailable as error:
        return str(error)
    return None


def require(backend: str) -> str:
    """Skip the test where the backend cannot run."""
    reason = why_not(backend)
    if reason is not None:
        pytest.skip(reason)
    return backend
