"""The conformance suite that ``inspect_ai`` hands to makers of sandboxes, whole, on each closed backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxes import Sandbox, SandboxSpec, SandboxUnavailable, images, open_sandbox
from tests.sandboxes.boxes import CLOSED_BACKENDS, require
from tests.sandboxes.inspect_adapter import BoxEnvironment

pytestmark = pytest.mark.slow

NEEDS_ACCOUNTS = {"test_exec_as_user": "adds an account, and the system folders of this machine are read-only in a box"}


@pytest.fixture(scope="module")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """The default image as a folder, or None where there is no Docker to take it from."""
    target = tmp_path_factory.mktemp("inspect") / "root"
    for folder in target.parents[:3]:
        folder.chmod(0o755)  # the root of a box is read by ids that are nobody here
    try:
        images.export_image(images.BOOKWORM, target)
    except SandboxUnavailable:
        yield None
        return
    yield target


@pytest.fixture(scope="module", params=CLOSED_BACKENDS)
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    backend = require(request.param)
    root = request.getfixturevalue("image_root") if backend == "bubblewrap" else None
    async with open_sandbox(backend, SandboxSpec(root=root)) as box:
        yield box


@pytest.fixture
def sandbox_env(shared: Sandbox, request: pytest.FixtureRequest) -> BoxEnvironment:
    reason = NEEDS_ACCOUNTS.get(request.node.originalname)
    if reason and shared.backend == "bubblewrap" and shared.spec.root is None:
        pytest.skip(reason)
    return BoxEnvironment(shared)


def test_the_suite_is_whole():
    assert sum(name.startswith("test_") and name != "test_the_suite_is_whole" for name in globals()) >= 44
