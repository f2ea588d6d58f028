"""Closed boxes in which the tools of one rollout run.

    async with open_sandbox("auto", SandboxSpec(memory_mb=512)) as box:
        result = await box.exec("python3 -c 'print(6 * 7)'")

``base`` is the contract, ``errors`` what can go wrong, ``registry`` the names. A backend (``docker``, ``bubblewrap``,
``local``) only starts and stops boxes; what happens inside is the work of one small program that all of them share
(``runner``).
"""

from sandboxes.base import ExecResult, Pipe, ProcessStatus, Sandbox, SandboxSpec, Shell
from sandboxes.errors import (
    ImageBuildError,
    ImageNotFound,
    OutputLimitExceeded,
    PoolBusy,
    SandboxClosed,
    SandboxError,
    SandboxFileError,
    SandboxStartError,
    SandboxTimeout,
    SandboxUnavailable,
    UnknownBackend,
)
from sandboxes.registry import backends, check_backend, open_sandbox, register_backend, start_sandbox

__all__ = [
    "ExecResult",
    "ImageBuildError",
    "ImageNotFound",
    "OutputLimitExceeded",
    "Pipe",
    "PoolBusy",
    "ProcessStatus",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "SandboxFileError",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxTimeout",
    "SandboxUnavailable",
    "Shell",
    "UnknownBackend",
    "backends",
    "check_backend",
    "open_sandbox",
    "register_backend",
    "start_sandbox",
]
