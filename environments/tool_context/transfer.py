"""Files between this machine and a box, byte for byte: nothing passes through shell text, nothing is cut.

The answers are dictionaries as verifiers expect them. What the agent may have caused (a file to fetch is not there)
is an answer with ``success`` false; what it cannot have caused (a local file is missing) is raised.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.errors import OutputLimitExceeded, SandboxFileError

if TYPE_CHECKING:
    from sandboxes.base import Sandbox

Report = dict[str, Any]


async def upload_file(box: Sandbox, source: Path, target: str) -> Report:
    """Raises: FileNotFoundError, IsADirectoryError for the local file; SandboxFileError where the box refuses it."""
    if not source.is_file():
        raise (IsADirectoryError if source.is_dir() else FileNotFoundError)(f"upload_file: {source} is not a file")
    await box.upload(source, target)
    return _uploaded(source, target)


async def upload_dir(box: Sandbox, source: Path, target: str) -> list[Report]:
    """One report per file, in order. Empty folders, modes and links inside the tree come along.

    Raises: NotADirectoryError for the local folder; SandboxFileError where the box refuses it.
    """
    if not source.is_dir():
        raise NotADirectoryError(f"upload_dir: {source} is not a folder")
    await box.upload(source, target)
    files = await asyncio.to_thread(_files, source)
    return [_uploaded(source / name, f"{target.rstrip('/')}/{name.as_posix()}") for name in files]


async def download_file(box: Sandbox, source: str, target: Path) -> Report:
    """Write the file of the box to ``target``; a file that is absent or too large is ``success`` false."""
    try:
        data = await box.read(source)
    except (SandboxFileError, OutputLimitExceeded) as error:
        return {"success": False, "error": str(error)}
    await asyncio.to_thread(_write, target, data)
    return {"success": True, "bytes": len(data), "path": source}


async def download_dir(box: Sandbox, source: str, target: Path) -> list[Report]:
    """One report per file, in order; a folder that is absent or too large is one report with ``success`` false."""
    try:
        await box.download(source, target)
    except (SandboxFileError, OutputLimitExceeded) as error:
        return [{"success": False, "error": str(error)}]
    files = await asyncio.to_thread(_files, target)
    base = source.rstrip("/")
    return [
        {"success": True, "bytes": (target / name).lstat().st_size, "path": f"{base}/{name.as_posix()}"}
        for name in files
    ]


def _uploaded(source: Path, target: str) -> Report:
    size = source.lstat().st_size
    return {"success": True, "bytes": size, "path": target, "output": "", "exit_code": 0, "error": None}


def _files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
