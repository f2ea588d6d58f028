"""The connection to the Docker daemon, and what its failures mean in words that name the next step."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandboxes.errors import SandboxStartError, SandboxUnavailable

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

    _knock()
    try:
        client = docker.from_env(timeout=timeout_s, max_pool_size=connections)
        kind = client.version()["Os"]
    except DockerException as error:
        raise SandboxUnavailable(f"the Docker daemon at {host()} cannot be used: {reason(error)}") from error
    if kind != "linux":
        raise SandboxUnavailable(f"the Docker daemon runs {kind} containers; switch it to Linux containers")
    return client


def host() -> str:
    """The address of the daemon, as Docker's own tools take it from the environment."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


@contextlib.contextmanager
def explained(step: str) -> Iterator[None]:
    """Turns what goes wrong with the daemon in a step of a start into an error that names the step.

    Raises: SandboxUnavailable where the daemon is gone, SandboxStartError where it refuses.
    """
    from docker.errors import DockerException
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import RequestException

    try:
        yield
    except NoConnection as error:
        raise SandboxUnavailable(f"{step}: {reason(error)}") from error
    except (DockerException, RequestException) as error:
        raise SandboxStartError(f"{step}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What the daemon said, or that it says nothing any more, in one line."""
    from requests.exceptions import ConnectionError as NoConnection

    if isinstance(error, NoConnection):
        return f"the Docker daemon at {host()} has gone away"
    explanation = getattr(error, "explanation", None)
    return " ".join(str(explanation or error).split())


def _knock() -> None:
    """See that something answers at a Unix socket, where the usual mistakes have an answer each.

    Raises: SandboxUnavailable.
    """
    address = urlsplit(host())
    if address.scheme != "unix":
        return
    try:
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(address.path)
    except FileNotFoundError as error:
        raise SandboxUnavailable(f"no Docker daemon at {host()}: {_START_ONE}") from error
    except ConnectionRefusedError as error:
        raise SandboxUnavailable(f"nothing answers at {host()}, the Docker daemon has ended: {_START_ONE}") from error
    except PermissionError as error:
        raise SandboxUnavailable(
            f"this user may not use the Docker daemon at {host()}: run as root, or add the user to the "
            "group docker (`sudo usermod -aG docker $USER`, then log in again)"
        ) from error
    except OSError as error:
        raise SandboxUnavailable(f"the Docker daemon at {host()} cannot be reached: {error}") from error
