"""Engines of type SGLang."""

from __future__ import annotations

from atroposlib.envs.server_handling.http_engine import HttpEngine


class SGLangServer(HttpEngine):
    """An engine of type SGLang."""
