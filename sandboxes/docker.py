"""Boxes that are Docker containers.

The runner is put into a created container, started as its first process, and spoken to over the container's own
standard streams, so that a command costs no request to the daemon and nothing of the host is mounted. Promises beyond
those of ``sandboxes.base``:

- an image that was asked for is never replaced by another; any POSIX image works, whatever its entrypoint and users;
- a start that fails or is cancelled leaves no container behind, and says which step went wrong;
- where the container dies, every call raises ``SandboxClosed`` with the reason.

The working folder, ``/tmp`` and the home of ``agent`` are in memory, each bounded by ``disk_mb``; the limit on memory
is ``memory_mb`` and ``disk_mb`` together, since files in memory count. A working folder in which the image has files
stays the image's own, on disk, and is given to the box's user; there ``disk_mb`` bounds each file.

Where this process dies, the daemon closes the runner's input and the runner ends all that runs in the box; the stopped
container is left to ``sandboxes.reaper``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from sandboxes import docker_daemon
from sandboxes.allow_list import open_hosts
from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.channel import Channel
from sandboxes.docker_container import Container
from sandboxes.docker_stream import attach
from sandboxes.errors import SandboxError, SandboxFileError, SandboxStartError
from sandboxes.image_build import built_image
from sandboxes.image_store import Image, find_image
from sandboxes.namespaces.seccomp import container_filter
from sandboxes.processor import cores_of
from sandboxes.rootfs import AGENT_UID
from sandboxes.runner_sandbox import BASE_ENVIRONMENT, FILE_TIME_LIMIT_S, RunnerSandbox

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)

AGENT = str(AGENT_UID)
"""The user of a box where the spec names none; it need not be in the image's list of users."""
STARTS_AT_ONCE = 4
"""The daemon starts no more boxes per second when asked for more at once; each only waits longer."""

HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost\n"

_THREADS = 12
_OF_THE_IMAGES_USER = ("HOME", "USER", "LOGNAME", "HOSTNAME")

P = ParamSpec("P")
T = TypeVar("T")


def check() -> None:
    """Raises: SandboxUnavailable, saying what to start, install or change."""
    docker_daemon.connect().close()


async def start(spec: SandboxSpec) -> Sandbox:
    """A running box; the caller closes it.

    Raises: SandboxUnavailable (no daemon), ImageNotFound, ImageBuildError, SandboxStartError.
    """
    if spec.build is not None and spec.image is not None:
        raise SandboxStartError(f"a box has one image: name the image {spec.image} or the folder {spec.build}")
    if spec.root is not None:
        raise SandboxStartError(
            "a Docker box is made from an image, not from a root folder: "
            f"`tar -C {spec.root} -c . | docker import - NAME:TAG` makes one"
        )
    client = await _in_thread(_client)
    image = await _abandonable(_find_image, client, spec)
    async with _start_slots(), AsyncExitStack() as undo:
        box = await _start(client, image, spec, undo)
        undo.pop_all()
    return box


class DockerSandbox(RunnerSandbox):
    """A box that is a container."""

    backend: ClassVar[str] = "docker"

    def __init__(self, box_id: str, spec: SandboxSpec, channel: Channel, container: Container, image: Image) -> None:
        of_image = {name: value for name, value in image.environment.items() if name not in _OF_THE_IMAGES_USER}
        environment = {**BASE_ENVIRONMENT, **of_image}
        super().__init__(box_id, spec, channel, user=spec.user or AGENT, environment=environment)
        self._container = container

    async def _prepare(self) -> None:
        await self.check_user()
        try:
            await asyncio.gather(self._prepare_names(), self._prepare_workdir())
        except SandboxFileError as error:
            raise SandboxStartError(f"the box could not be made ready: {error}") from error

    async def _prepare_names(self) -> None:
        """Without a network the daemon writes no names, and ``localhost`` should be one."""
        if self.spec.network != "bridge":
            await self.write("/etc/hosts", HOSTS, user="root")

    async def _prepare_workdir(self) -> None:
        await self._give_folder(self.spec.workdir)
        if self._container.keeps_workdir_of_image and self._user not in ("root", "0"):
            command = ["chown", "-hR", str(self._user), "."]
            result = await self.exec(command, user="root", timeout_s=FILE_TIME_LIMIT_S)
            if result.exit_code != 0:
                why = f"not done within {FILE_TIME_LIMIT_S:g} s" if result.timed_out else result.output
                raise SandboxStartError(f"{self.spec.workdir} could not be given to the box's user: {why}")

    async def _stop(self) -> None:
        await _in_thread(self._container.remove)


def _find_image(client: DockerClient, spec: SandboxSpec) -> Image:
    if spec.build is None:
        return find_image(client, spec.image)
    with docker_daemon.explained(f"the image of {spec.build} could not be looked up"):
        tag = built_image(client, spec.build)
    return find_image(client, tag)


async def _start(client: DockerClient, image: Image, spec: SandboxSpec, undo: AsyncExitStack) -> Sandbox:
    """The steps of a start, each of which leaves in ``undo`` what takes it back."""
    box_id = f"box-{uuid.uuid4().hex[:12]}"
    container = Container(client, box_id, spec)
    undo.push_async_callback(_discard, container)
    await _in_thread(container.create, image)
    stream = await attach(client, container.name, functools.partial(_in_thread, container.why_ended))
    undo.callback(stream.close)
    await _in_thread(container.start)
    channel = await Channel.open(stream, stream)
    undo.push_async_callback(channel.close)
    channel.filter_calls(container_filter())
    channel.keep_to_cores(*cores_of(spec.cpus))
    box = DockerSandbox(box_id, spec, channel, container, image)
    await box._prepare()
    await open_hosts(box)
    return box


async def _discard(container: Container) -> None:
    """Remove what a failed start left; that it could not is logged, so that the failure itself is what rises."""
    try:
        await _in_thread(container.remove)
    except SandboxError:
        logger.exception("A box that did not start was left behind")


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the daemon without blocking the loop.

    A cancellation is raised once the call has ended (the client's timeout bounds it), so that what it made can be
    removed after it and not beside it.
    """
    loop = asyncio.get_running_loop()
    call = loop.run_in_executor(_threads(os.getpid()), functools.partial(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await _settle(call)
        raise


async def _abandonable(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``_in_thread``, for what leaves nothing behind: a cancellation does not wait for a pull or a build."""
    call = asyncio.ensure_future(asyncio.to_thread(functools.partial(function, *args, **kwargs)))
    call.add_done_callback(_note_failure)
    return await asyncio.shield(call)


def _note_failure(call: asyncio.Future[Any]) -> None:
    if not call.cancelled() and call.exception() is not None:
        logger.debug("Looking for an image failed: %s", call.exception())


async def _settle(call: asyncio.Future[Any]) -> None:
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:
            continue
    if call.exception() is not None:
        logger.debug("A call that was cancelled failed: %s", call.exception())


_connecting = threading.Lock()


def _client() -> DockerClient:
    """The one client of this process; connects at first."""
    with _connecting:
        return _connected(os.getpid(), docker_daemon.host())


@functools.cache
def _connected(_process: int, _host: str) -> DockerClient:
    return docker_daemon.connect(connections=_THREADS)


@functools.cache
def _threads(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")


_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _start_slots() -> asyncio.Semaphore:
    """Lets ``STARTS_AT_ONCE`` starts of this event loop through, in the order in which they came."""
    return _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(STARTS_AT_ONCE))
