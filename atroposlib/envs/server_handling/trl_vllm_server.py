"""Engines of type TRL."""

from __future__ import annotations

from atroposlib.envs.server_handling.http_engine import HttpEngine


class TrlVllmServer(HttpEngine):
    """An engine of type TRL."""
