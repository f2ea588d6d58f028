"""Engines of type vLLM."""

from __future__ import annotations

from atroposlib.envs.server_handling.http_engine import HttpEngine


class VLLMServer(HttpEngine):
    """An engine of type vLLM."""
