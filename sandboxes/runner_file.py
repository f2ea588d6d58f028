"""The runner as a file of a box: where it stands, its archive, and how an image says that it has it already.

Putting a file into a created container costs the daemon about as much as creating it, so the images that this project
builds carry the runner and its digest as a label. A box of any other image, or of one with an older runner, gets the
file when it is created.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile

from sandboxes.runner import runner_path

RUNNER = "/.sandbox-runner"
RUNNER_MODE = 0o555
RUNNER_LABEL = "hermes.runner"
"""Label of an image: the digest of the runner in it."""


@functools.cache
def runner_digest(machine: str) -> str:
    """SHA-256 of the runner for a machine. Raises: SandboxUnavailable where there is none."""
    return hashlib.sha256(runner_path(machine).read_bytes()).hexdigest()


@functools.cache
def runner_archive(machine: str) -> bytes:
    """A tar archive to unpack at ``/``. Raises: SandboxUnavailable where there is no runner for the machine."""
    program = runner_path(machine).read_bytes()
    member = tarfile.TarInfo(RUNNER.lstrip("/"))
    member.size, member.mode = len(program), RUNNER_MODE
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(member, io.BytesIO(program))
    return packed.getvalue()
