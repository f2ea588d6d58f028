"""What the tests of the boxes share: a Docker daemon, where there is one, and a tiny image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sandboxes import docker_daemon, images
from sandboxes.errors import SandboxUnavailable
from tests.sandboxes import boxes

if TYPE_CHECKING:
    from docker import DockerClient


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", metavar="NAME", help="run what every backend promises on this one alone")


def pytest_configure(config: pytest.Config) -> None:
    backend = config.getoption("--backend", default=None)
    if backend is not None:
        boxes.only(backend)


@pytest.fixture(scope="session")
def docker_client() -> Iterator[DockerClient]:
    """A client of the daemon; the test is skipped where none runs."""
    try:
        client = docker_daemon.connect()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def busybox_image(docker_client: DockerClient) -> str:
    """The name of the tiny image, made where it is missing."""
    if not images.exists(docker_client, images.BUSYBOX):
        images.build_image(images.RECIPES["busybox"], lambda _line: None)
    return images.BUSYBOX
