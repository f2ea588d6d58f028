"""The trajectory server. ``atroposlib.api:app`` is made when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.api.server import app, create_app

__all__ = ["app", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from atroposlib.api import server

    return getattr(server, name)
