"""Plain processes of this machine: no isolation at all, for those who ask for it by name.

What runs in such a "box" has the rights of the user who runs the environment: it can read their files and reach the
network. Only what a box owes its rollout is kept: a folder of its own that vanishes, environment variables of its own,
limits of time and output, and that nothing outlives it short of a process that escapes on purpose.

The working folder of the contract, ``/workspace``, is a temporary folder. Paths below it are translated where a method
is given them, and where the text of a command names them (``cat /workspace/a``); ``$HERMES_WORKSPACE`` names the folder
too. The contents of files are not translated, and output shows the folder's own name. ``$TMPDIR`` is the box's own, so
that what ``mktemp`` makes goes with it; ``/tmp`` is the machine's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import platform
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from sandboxes.base import SandboxSpec
from sandboxes.errors import SandboxError, SandboxStartError, SandboxUnavailable
from sandboxes.folders import make_folder, remove_folder
from sandboxes.launch import Launched, Program, launch
from sandboxes.ownership import PROCESS_MARK, owned_name
from sandboxes.runner import runner_path
from sandboxes.runner_sandbox import BASE_ENVIRONMENT, RunnerSandbox

logger = logging.getLogger(__name__)

# The shell outlives the runner, which ends with its owner however that dies: so the folder goes at once even then.
_RUN_AND_REMOVE = '"$1"; exec /bin/rm -rf -- "$2"'
_WORK, _TEMPORARY = "workspace", "tmp"


def check() -> None:
    """Raises: SandboxUnavailable where this machine cannot run the runner."""
    if sys.platform != "linux":
        raise SandboxUnavailable(f"local sandboxes need Linux, this is {sys.platform}; use Docker")
    runner_path(platform.machine())


async def start(spec: SandboxSpec) -> LocalSandbox:
    """Start a box. Raises: SandboxUnavailable, SandboxStartError."""
    check()
    if (spec.image, spec.build, spec.root) != (None, None, None):
        raise SandboxUnavailable("a local sandbox has no image: it runs on this machine; use docker or bubblewrap")
    if spec.user is not None:
        raise SandboxUnavailable(f"a local sandbox runs as you, not as {spec.user!r}; use docker or bubblewrap")
    if not isinstance(spec.network, str):
        raise SandboxUnavailable(f"a local sandbox cannot be held to a list of hosts ({spec.network})")
    _warn_once()
    box_id = f"local-{uuid.uuid4().hex[:12]}"
    try:
        folder = make_folder(box_id, spec.lease_s)
        for part in (_WORK, _TEMPORARY):
            (folder / part).mkdir(mode=0o700)
    except OSError as error:
        raise SandboxStartError(f"no temporary folder for the box can be made: {error}") from error
    argv = ("sh", "-c", _RUN_AND_REMOVE, "sh", str(runner_path(platform.machine())), str(folder))
    try:
        launched = await launch(Program(argv, "/bin/sh"))
    except BaseException:
        remove_folder(folder)
        raise
    return LocalSandbox(box_id, spec, launched, folder)


@functools.cache
def _warn_once() -> None:
    logger.warning(
        "local sandbox: commands of the model run on this machine, with your rights and no isolation; "
        "use docker or bubblewrap unless you trust them"
    )


class LocalSandbox(RunnerSandbox):
    """Commands as ordinary child processes, in a temporary folder."""

    backend: ClassVar[str] = "local"

    def __init__(self, sandbox_id: str, spec: SandboxSpec, launched: Launched, folder: Path) -> None:
        work = str(folder / _WORK)
        places = {"HOME": work, "HERMES_WORKSPACE": work, "TMPDIR": str(folder / _TEMPORARY)}
        own = {**places, PROCESS_MARK: owned_name(sandbox_id, lease_s=spec.lease_s)}
        translate = path_translator(spec.workdir, work)
        super().__init__(
            sandbox_id, spec, launched.channel, user=None, environment={**BASE_ENVIRONMENT, **own}, translate=translate
        )
        self.folder = folder
        self._launched = launched

    async def _stop(self) -> None:
        await self._launched.end()
        # The shell did it already, unless someone killed it or a command had closed a folder.
        try:
            await asyncio.to_thread(remove_folder, self.folder)
        except OSError as error:
            raise SandboxError(f"the folder of the box {self.id} was not removed: {error}") from error


def path_translator(workdir: str, folder: str) -> Callable[[str], str]:
    """A function that puts ``folder`` where a text names ``workdir`` as the beginning of a path.

    >>> path_translator("/workspace", "/tmp/x")("cat /workspace/a /srv/workspace/b /workspaces")
    'cat /tmp/x/a /srv/workspace/b /workspaces'
    """
    pattern = re.compile(rf"(?<![\w./~-]){re.escape(workdir)}(?![\w.-])")
    return lambda text: pattern.sub(lambda _: folder, text)
