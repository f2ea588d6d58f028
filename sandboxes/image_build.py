"""Images of Docker boxes from a folder with a Dockerfile, built once for each content of the folder.

The tag is the digest of what the daemon would be sent (``.dockerignore`` counts), so a folder that did not change is
never built again, in this process or another, and one that did change never gets an older image.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes import docker_daemon
from sandboxes.errors import ImageBuildError
from sandboxes.images import IMAGE_LABEL, exists
from sandboxes.once import Once

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)

BUILT_REPOSITORY = "hermes-built"

_SILENCE_S = 1800
_LAST_LINES = 12

_builds: Once[str] = Once()
_digests: dict[Path, tuple[list[tuple[str, int, int, int]], str]] = {}
"""Of a folder: what its files looked like, and their digest."""


def built_image(client: DockerClient, folder: Path) -> str:
    """The tag of the image of a folder with a Dockerfile, which is built where it is missing. Blocks.

    Raises: ImageBuildError, naming the step and the end of its output; SandboxUnavailable (no daemon).
    """
    tag = f"{BUILT_REPOSITORY}:{content_digest(folder)[:32]}"
    if not exists(client, tag):
        _builds.run(tag, lambda: _build(folder, tag))
    return tag


def content_digest(folder: Path) -> str:
    """SHA-256 of names, modes, links and contents of all that a build is given. Raises: ImageBuildError."""
    if not (folder / "Dockerfile").is_file():
        raise ImageBuildError(f"{folder} cannot be built: it has no file Dockerfile")
    names = sorted(_context(folder))
    seen = [_appearance(folder, name) for name in names]
    known = _digests.get(folder)
    if known is None or known[0] != seen:
        known = _digests[folder] = (seen, _digest(folder, names))
    return known[1]


def _context(folder: Path) -> Iterable[str]:
    from docker.utils.build import exclude_paths

    ignored: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        try:
            lines = (folder / ".dockerignore").read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ImageBuildError(f"{folder / '.dockerignore'} is not written in UTF-8: {error}") from error
        ignored = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return exclude_paths(str(folder), ignored, dockerfile="Dockerfile")


def _appearance(folder: Path, name: str) -> tuple[str, int, int, int]:
    facts = (folder / name).lstat()
    return name, facts.st_mode, facts.st_size, facts.st_mtime_ns


def _digest(folder: Path, names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        mode = path.lstat().st_mode
        digest.update(f"{name}\0{mode:o}\0".encode(errors="surrogateescape"))
        if stat.S_ISLNK(mode):
            digest.update(os.readlink(path).encode(errors="surrogateescape"))
        elif stat.S_ISREG(mode):
            digest.update(_content(path))
        digest.update(b"\0")
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _build(folder: Path, tag: str) -> None:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    started = time.monotonic()
    logger.info("building the image of %s", folder)
    progress = _Progress(folder)
    try:
        with contextlib.closing(docker_daemon.connect(timeout_s=_SILENCE_S)) as client:
            for message in client.api.build(
                path=str(folder), tag=tag, rm=True, forcerm=True, decode=True, labels={IMAGE_LABEL: "folder"}
            ):
                progress.take(message)
    except (DockerException, RequestException) as error:
        raise ImageBuildError(f"{folder} could not be built: {docker_daemon.reason(error)}") from error
    logger.info("built the image of %s in %.0f s", folder, time.monotonic() - started)


class _Progress:
    """What a build says: its steps go to the log, its failure is raised."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = "its first step"
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, message: dict[str, Any]) -> None:
        """Raises: ImageBuildError."""
        text = str(message.get("stream") or "").strip()
        if text.startswith("Step "):
            self._step = text
            self._lines.clear()
            logger.info("%s: %s", self._folder, text)
        elif text:
            self._lines.append(text)
        if "error" in message:
            said = "\n".join([*self._lines, str(message["error"])])
            raise ImageBuildError(f"{self._folder} could not be built, at {self._step}:\n{said}")
