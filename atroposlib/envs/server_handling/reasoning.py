"""How hard a reasoning model is asked to think, in the dialect of the engine that is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError

EFFORT_TO_MAX_TOKENS: dict[str, int] = {
    "none": 1024,
    "minimal": 3200,
    "low": 6400,
    "medium": 16000,
    "high": 25600,
    "xhigh": 30400,
}
"""Tokens to think with, for engines that take a number only."""

VALID_REASONING_EFFORTS = tuple(EFFORT_TO_MAX_TOKENS)


@dataclass
class ReasoningConfig:
    """Whether a model should reason, and how much. An effort or a token limit switches reasoning on."""

    enabled: bool = False
    effort: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in EFFORT_TO_MAX_TOKENS:
            raise ConfigError(
                f"reasoning_effort is {self.effort!r}; it must be one of {', '.join(EFFORT_TO_MAX_TOKENS)}"
            )
        if self.effort is not None or self.max_tokens is not None:
            self.enabled = True

    @classmethod
    def from_env_config(cls, config: Any) -> ReasoningConfig:
        """Read the fields ``thinking_mode``, ``reasoning_effort`` and ``max_reasoning_tokens`` of an env config."""
        return cls(
            enabled=bool(getattr(config, "thinking_mode", False)),
            effort=getattr(config, "reasoning_effort", None),
            max_tokens=getattr(config, "max_reasoning_tokens", None),
        )

    def is_reasoning_kwargs_active(self) -> bool:
        """Whether requests carry anything about reasoning at all."""
        return self.enabled

    def build_extra_body(self, base_url: str | None = None, use_max_tokens: bool = False) -> dict[str, Any] | None:
        """The fields a chat request carries, or ``None`` where reasoning is off. An effort wins over a limit."""
        if not self.enabled:
            return None
        if urlsplit(base_url or "").hostname == "api.openai.com":
            return {"reasoning_effort": self.effort or "medium"}
        reasoning: dict[str, Any] = {"enabled": True}
        if self.effort is not None and use_max_tokens:
            reasoning["max_tokens"] = EFFORT_TO_MAX_TOKENS[self.effort]
        elif self.effort is not None:
            reasoning["effort"] = self.effort
        elif self.max_tokens is not None:
            reasoning["max_tokens"] = self.max_tokens
        return {"reasoning": reasoning}
