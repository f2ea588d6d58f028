"""Backends by name, and the choice that ``auto`` makes.

A backend is a module (or any object) with ``async start(spec) -> Sandbox`` and ``check()``, which raises
``SandboxUnavailable`` where the backend cannot run. The project's own are loaded when they are first used; others come
by ``register_backend``, or as an entry point of the group ``hermes_sandboxes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import SandboxUnavailable, UnknownBackend

logger = logging.getLogger(__name__)

AUTO = "auto"
ENTRY_POINTS = "hermes_sandboxes"

StartSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]


@dataclass(frozen=True)
class _Backend:
    start: StartSandbox
    check: Callable[[], None]


_OWN = {"docker": "sandboxes.docker", "bubblewrap": "sandboxes.bubblewrap", "local": "sandboxes.local"}
_CHOICES = ("bubblewrap", "docker")
_registered: dict[str, _Backend] = {}


def backends() -> list[str]:
    """All names that ``start_sandbox`` takes, ``auto`` first."""
    return [AUTO, *dict.fromkeys([*_OWN, *_registered, *_entry_points()])]


def register_backend(name: str, factory: StartSandbox, *, check: Callable[[], None] | None = None) -> None:
    """Add a backend, or replace one.

    Raises: ValueError for the name ``auto``.
    """
    if name == AUTO:
        raise ValueError(f"{AUTO!r} is the choice among backends and cannot be one")
    _registered[name] = _Backend(factory, check or _always)


def check_backend(name: str, spec: SandboxSpec | None = None) -> None:
    """Return where boxes of this backend can be started here; for ``auto``, of the one that it chooses for ``spec``.

    May block for a moment: a backend tries what it needs.

    Raises: UnknownBackend; SandboxUnavailable, saying what to install or change.
    """
    if name == AUTO:
        name = _choose(spec or SandboxSpec())
    _find(name).check()


async def start_sandbox(backend: str, spec: SandboxSpec | None = None) -> Sandbox:
    """A running box, which the caller closes.

    ``auto`` is Docker for a spec with an image, or with the network ``bridge``; else Linux namespaces where the kernel
    allows them, else Docker. It is never ``local``.

    Raises: UnknownBackend, SandboxUnavailable, SandboxStartError.
    """
    spec = spec or SandboxSpec()
    if backend == AUTO:
        backend = await asyncio.to_thread(_choose, spec)
    return await _find(backend).start(spec)


@contextlib.asynccontextmanager
async def open_sandbox(backend: str, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
    """A box for the length of the block, closed however it is left. Raises as ``start_sandbox`` does."""
    box = await start_sandbox(backend, spec)
    try:
        yield box
    finally:
        await box.close()


def _choose(spec: SandboxSpec) -> str:
    if spec.image is not None or spec.build is not None or spec.network == "bridge":
        return "docker"
    reasons = []
    for name in _CHOICES:
        try:
            _find(name).check()
        except SandboxUnavailable as error:
            reasons.append(f"{name}: {error}")
        else:
            _say_once(name)
            return name
    raise SandboxUnavailable("no sandbox can be started here. " + " ".join(reasons))


@functools.cache
def _say_once(name: str) -> None:
    logger.info("auto: boxes are of the backend %s", name)


def _find(name: str) -> _Backend:
    if name in _registered:
        return _registered[name]
    if name in _OWN:
        module = importlib.import_module(_OWN[name])
        return _Backend(module.start, module.check)
    found = _entry_points().get(name)
    if found is None:
        raise UnknownBackend(f"no sandbox backend is called {name!r}; there are: {', '.join(backends())}")
    return found()


def _entry_points() -> dict[str, Callable[[], _Backend]]:
    return {point.name: functools.partial(_load, point.load) for point in entry_points(group=ENTRY_POINTS)}


def _load(load: Callable[[], Any]) -> _Backend:
    """An entry point names an object with ``start`` and ``check``, or a bare factory."""
    loaded = load()
    start = getattr(loaded, "start", loaded)
    return _Backend(start, getattr(loaded, "check", _always))


def _always() -> None:
    """A backend that does not say what it needs."""
