"""The relay's program, which ``build.py`` makes."""

from __future__ import annotations

from pathlib import Path

from sandboxes.static_program import StaticProgram

RELAY = StaticProgram("relay", Path(__file__).parent)


def relay_path(machine: str) -> Path:
    """The relay for a machine name such as ``uname -m`` gives it. Raises: SandboxUnavailable where there is none."""
    return RELAY.path(machine)
