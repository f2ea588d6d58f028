"""Temporary folders that carry their owner in their name, and their removal with all that is mounted in them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from sandboxes.ownership import owned_name

_ATTEMPTS = 5


def make_folder(box_id: str, lease_s: float | None = None) -> Path:
    """A new folder, for this user only, that the reaper removes once this process is gone or the lease is over."""
    folder = Path(tempfile.gettempdir()) / owned_name(box_id, lease_s=lease_s)
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove ``folder``, after unmounting what is mounted in it; nothing mounted is ever deleted from.

    Raises: OSError where something of it remains.
    """
    for mount in mounts_below(folder):
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
    held = mounts_below(folder)
    if held:
        raise OSError(f"{held[0]} is still mounted; {folder} was not removed")
    for _ in range(_ATTEMPTS):
        try:
            return shutil.rmtree(folder)
        except FileNotFoundError:
            # Gone already, or someone else removes it too and took a file from under this removal.
            if not folder.exists():
                return
        except PermissionError:
            # Whoever made them may have closed folders in it, as Go does with its cache.
            subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=False, capture_output=True)
    raise OSError(f"{folder} was not removed: files in it came and went meanwhile, or are not this user's to remove")


def mounts_below(folder: Path) -> list[Path]:
    """Mount points at or below ``folder``, the innermost first."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    points = [Path(_unescape(line.split(" ")[4])) for line in lines]
    inside = [point for point in points if point.is_relative_to(folder)]
    return sorted(inside, key=lambda point: len(point.parts), reverse=True)


def _unescape(text: str) -> str:
    """Undo the octal escapes of /proc: blank, tab, newline and backslash."""
    for sign in (" ", "\t", "\n", "\\"):
        text = text.replace(f"\\{ord(sign):03o}", sign)
    return text
