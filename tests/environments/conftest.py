"""Boxes for the tests of tools, contexts and environments."""

import pytest

from environments.tools.workspaces import BoxPlan, _directory, workspace_scope
from sandboxes import check_backend
from sandboxes.base import SandboxSpec
from sandboxes.errors import SandboxUnavailable

BACKENDS = [
    "local",
    pytest.param("bubblewrap", marks=pytest.mark.namespaces),
    pytest.param("docker", marks=pytest.mark.docker),
]


def require(name: str) -> str:
    """The backend, where it can be used here; else the test is skipped with what is missing."""
    try:
        check_backend(name)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    """Each backend in turn."""
    return require(request.param)


@pytest.fixture
async def scope(backend):
    """Workspaces over boxes of the backend, closed at the end of the test."""
    async with workspace_scope(BoxPlan(backend, SandboxSpec(), command_timeout_s=20)) as opened:
        yield opened


@pytest.fixture
def no_box_is_left():
    """Fails a test after which a box is open."""
    yield
    assert _directory._open == {}
