"""The resident runner: one small static program that every backend puts into its boxes.

``src/runner.c`` states its promises, ``src/protocol.h`` the words it speaks; ``build.py`` makes what is in ``bin/``.
"""

from __future__ import annotations

from pathlib import Path

from sandboxes.static_program import StaticProgram

RUNNER = StaticProgram("runner", Path(__file__).parent)


def runner_path(machine: str) -> Path:
    """The runner for a machine name. Raises: SandboxUnavailable where there is none (see ``StaticProgram.path``)."""
    return RUNNER.path(machine)
