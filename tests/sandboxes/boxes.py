"""What the tests of boxes share."""

from __future__ import annotations

import functools

import pytest

from sandboxes import SandboxUnavailable, check_backend

BACKENDS = [
    pytest.param("bubblewrap", marks=pytest.mark.namespaces),
    pytest.param("docker", marks=pytest.mark.docker),
    "local",
]


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
