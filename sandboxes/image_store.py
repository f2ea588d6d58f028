"""Which image a box gets: the one that was asked for, or the default; looked up, else pulled, never replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandboxes import docker_daemon
from sandboxes.docker_daemon import explained
from sandboxes.errors import ImageNotFound
from sandboxes.images import BOOKWORM, BUILD_COMMAND, REPOSITORY, exists
from sandboxes.once import Once
from sandboxes.runner_file import RUNNER_LABEL

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)

PUBLIC_IMAGE = "python:3.11-slim"
"""What boxes get where the default image was not built."""


@dataclass(frozen=True)
class Image:
    """What a box needs to know of a local image."""

    name: str
    id: str
    architecture: str
    """As Docker says it: ``amd64``, ``arm64``, …"""
    environment: Mapping[str, str]
    runner_digest: str | None = None
    """Of the runner that the image has already."""


_pulls: Once[str] = Once()


def find_image(client: DockerClient, wanted: str | None) -> Image:
    """The local image ``wanted``, pulled where it is missing; None: the default image. Blocks.

    Raises: ImageNotFound, saying how to make it or why the pull failed; SandboxUnavailable.
    """
    with explained(f"the image {wanted or BOOKWORM} could not be looked up"):
        if wanted is not None:
            return _find(client, wanted)
        if exists(client, BOOKWORM):
            return _find(client, BOOKWORM)
        return _find_public(client)


def _find_public(client: DockerClient) -> Image:
    try:
        return _find(client, PUBLIC_IMAGE)
    except ImageNotFound as error:
        raise ImageNotFound(
            f"the default image {BOOKWORM} is not built: make it with `{BUILD_COMMAND} bookworm`. "
            f"The public image in its place cannot be had either: {error}"
        ) from error


def _find(client: DockerClient, name: str) -> Image:
    from docker.errors import ImageNotFound as NoSuchImage

    try:
        facts = client.api.inspect_image(name)
    except NoSuchImage:
        _require_pullable(name)
        _pulls.run(name, lambda: _pull(client, name))
        facts = client.api.inspect_image(name)
    return _image(name, facts)


def _require_pullable(name: str) -> None:
    repository, _, tag = name.partition(":")
    if repository == REPOSITORY:
        raise ImageNotFound(f"the image {name} is not built: `{BUILD_COMMAND} {tag}`")


def _pull(client: DockerClient, name: str) -> None:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    started = time.monotonic()
    logger.info("pulling the image %s", name)
    try:
        client.images.pull(name)
    except (DockerException, RequestException) as error:
        raise ImageNotFound(
            f"no image {name} here, and it cannot be pulled: {docker_daemon.reason(error)}. "
            "Build or load it (`docker build`, `docker load`), or name another"
        ) from error
    logger.info("pulled the image %s in %.0f s", name, time.monotonic() - started)


def _image(name: str, facts: Mapping[str, Any]) -> Image:
    config = facts.get("Config") or {}
    entries = config.get("Env") or []
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    digest = (config.get("Labels") or {}).get(RUNNER_LABEL)
    return Image(name, facts["Id"], facts["Architecture"], environment, digest)
