"""Where the relay's program for an architecture is."""

from __future__ import annotations

from pathlib import Path

from sandboxes.errors import SandboxUnavailable

BINARIES = Path(__file__).parent / "bin"
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def relay_path(machine: str) -> Path:
    """The relay for a machine name such as ``uname -m`` gives it. Raises: SandboxUnavailable where there is none."""
    path = BINARIES / f"relay-{_ALIASES.get(machine.lower(), machine.lower())}"
    if not path.is_file():
        raise SandboxUnavailable(f"no relay for the architecture {machine!r}; add it to sandboxes/relay/build.py")
    return path
