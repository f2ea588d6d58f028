"""Any engine that speaks OpenAI's API, hosted or local; token-exact where it also answers in ids (see ``probe``)."""

from __future__ import annotations

from atroposlib.envs.server_handling.http_engine import HttpEngine
from atroposlib.envs.server_handling.resolve_configs import resolve_openai_configs
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, OpenaiConfig, ReasoningConfig

__all__ = ["APIServerConfig", "OpenAIServer", "OpenaiConfig", "ReasoningConfig", "resolve_openai_configs"]


class OpenAIServer(HttpEngine):
    """An engine that speaks OpenAI's API."""
