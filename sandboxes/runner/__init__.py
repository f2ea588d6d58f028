"""The resident runner: one small static program that every backend puts into its boxes.

``src/runner.c`` states its promises, ``src/protocol.h`` the words it speaks; ``build.py`` makes what is in ``bin/``.
"""

from __future__ import annotations

from pathlib import Path

from sandboxes.errors import SandboxUnavailable

BINARIES = Path(__file__).parent / "bin"
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def runner_path(machine: str) -> Path:
    """The runner for a machine name as ``platform.machine()`` or Docker give it (``x86_64``, ``arm64``, …).

    Raises: SandboxUnavailable where there is no binary for that architecture.
    """
    name = _ALIASES.get(machine.lower(), machine.lower())
    path = BINARIES / f"runner-{name}"
    if not path.is_file():
        there = ", ".join(sorted(binary.name.removeprefix("runner-") for binary in BINARIES.glob("runner-*")))
        raise SandboxUnavailable(
            f"no sandbox runner for the architecture {machine!r} (there are: {there}); "
            "add it to sandboxes/runner/build.py and run that"
        )
    return path
