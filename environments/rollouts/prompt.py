"""What ``format_prompt`` gives: the text that puts an item to the agent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from environments.hermes_base_env import HermesAgentBaseEnv


def prompt_of(env: HermesAgentBaseEnv, item: Any) -> Any:
    """The content of the user message: text, or parts, which an engine that records no tokens may be sent.

    Raises: ConfigError where ``format_prompt`` gives something else.
    """
    prompt: Any = env.format_prompt(item)
    if isinstance(prompt, str) or _are_parts(prompt):
        return prompt
    if inspect.iscoroutine(prompt):
        prompt.close()
    raise ConfigError(
        f"{type(env).__name__}.format_prompt() returned {_described(prompt)}; it must return text, which becomes the "
        "user's message (--env.system_prompt is the one before it)"
    )


def _are_parts(prompt: object) -> bool:
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(part, Mapping) and "type" in part for part in prompt)


def _described(prompt: object) -> str:
    if inspect.isawaitable(prompt):
        return f"a {type(prompt).__name__}, since it is written with `async`"
    if isinstance(prompt, list) and prompt and all(isinstance(each, Mapping) and "role" in each for each in prompt):
        return "a list of messages"
    return "None" if prompt is None else f"a value of type {type(prompt).__name__}"
