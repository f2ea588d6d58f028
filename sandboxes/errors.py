"""What can go wrong with a sandbox, apart from what the command in it did.

    SandboxError
    ├── SandboxUnavailable   the backend cannot be used here (no daemon, no namespaces, no image)
    │   └── ImageNotFound    the image that was asked for is not there; says how to make it
    ├── ImageBuildError      an image or root file system could not be made; says what to install or change
    │   └── ImageUnbuildable nothing was begun: a tool or a right is missing here, or the request is wrong
    ├── UnknownBackend       no backend has this name (also a ``ValueError``)
    ├── SandboxStartError    the backend is there, but this box did not start
    ├── PoolBusy             the pool has no box for this caller: too many wait, or it took too long
    ├── SandboxClosed        the box was closed, or its process is gone; nothing can run in it
    ├── SandboxTimeout       the box itself did not answer in time (never a slow command)
    ├── SandboxFileError     a file could not be read or written (also an ``OSError``)
    └── OutputLimitExceeded  a file is larger than the limit of the call

A command that fails, is killed, or times out is not an error: it is an ``ExecResult``.
"""


class SandboxError(Exception):
    """Base of every error of this package."""


class SandboxUnavailable(SandboxError):
    """The backend cannot be used on this machine; the message says what to install or change."""


class ImageNotFound(SandboxUnavailable):
    """The image that was asked for does not exist; it is never replaced by another."""


class ImageBuildError(SandboxError):
    """An image or root file system could not be made here; the message says what to install or change."""


class ImageUnbuildable(ImageBuildError):
    """Nothing was begun, since a tool or a right is missing here, or the request is wrong."""


IMAGE_FAULTS = (ImageNotFound, ImageBuildError)
"""What every box of the same spec would fail at."""


class UnknownBackend(SandboxError, ValueError):
    """No backend has this name; the message lists those that there are."""


class SandboxStartError(SandboxError):
    """The box did not start."""


class PoolBusy(SandboxError):
    """Too many wait for a box, or this caller waited too long; the message says who is ahead."""


class SandboxClosed(SandboxError):
    """The box is closed or gone."""


class SandboxTimeout(SandboxError):
    """The box did not answer before the deadline of the call."""


class SandboxFileError(SandboxError, OSError):
    """A file of the box could not be read or written."""


class OutputLimitExceeded(SandboxError):
    """A file is larger than the call allows."""
