"""The connection to the Docker daemon, and what its failures mean in words that name the next step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandboxes.errors import SandboxUnavailable

if TYPE_CHECKING:
    from docker import DockerClient

DEFAULT_HOST = "unix:///var/run/docker.sock"
_START_ONE = "start one (scripts/start_dockerd.sh, `systemctl start docker`, Docker Desktop) or name it in DOCKER_HOST"


def connect(*, timeout_s: int = 60, connections: int = 16) -> DockerClient:
    """A client of the daemon that the environment names, once it answered.

    ``timeout_s`` bounds each silence of the daemon, ``connections`` the requests of several threads at once.

    Raises: SandboxUnavailable, saying what to start or change.
    """
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=connections)
        kind = client.version()["Os"]
    except DockerException as error:
        raise SandboxUnavailable(_explain(error)) from error
    if kind != "linux":
        raise SandboxUnavailable(f"the Docker daemon runs {kind} containers; switch it to Linux containers")
    return client


def host() -> str:
    """The address of the daemon, as Docker's own tools take it from the environment."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def reason(error: Exception) -> str:
    """What the daemon said, in one line, without the address of the request."""
    explanation = getattr(error, "explanation", None)
    return " ".join(str(explanation or error).split())


def _explain(error: Exception) -> str:
    for cause in _causes(error):
        if isinstance(cause, FileNotFoundError):
            return f"no Docker daemon at {host()}: {_START_ONE}"
        if isinstance(cause, PermissionError):
            return (
                f"this user may not use the Docker daemon at {host()}: run as root, or add the user to the group "
                "docker (`sudo usermod -aG docker $USER`, then log in again)"
            )
        if isinstance(cause, ConnectionRefusedError):
            return f"nothing answers at {host()}, the Docker daemon has ended: {_START_ONE}"
    return f"the Docker daemon at {host()} cannot be used: {reason(error)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
