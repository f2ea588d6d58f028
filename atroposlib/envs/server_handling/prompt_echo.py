"""The prompt in an engine's answer: ids that were sent, which need not be read a second time."""

from __future__ import annotations

from typing import Any

import orjson

from atroposlib.envs.server_handling.generation import PromptIds
from atroposlib.envs.server_handling.http_client import Shorten

ECHOED = "as sent"
"""Stands in an answer for the ids of the prompt, where they are those that were sent."""
_ECHOED_JSON = orjson.dumps(ECHOED)


def without_echo(prompt: Any) -> Shorten | None:
    """Compares the echo of a long prompt byte by byte and takes it out, before every id of it is read."""
    if not isinstance(prompt, PromptIds):
        return None
    key, echo = b'"prompt_token_ids":', prompt.json

    def shorten(content: bytes) -> bytes:
        kept, position = [], 0
        while (start := content.find(key, position)) >= 0:
            start += len(key)
            same = content[start : start + len(echo)] == echo
            kept += [content[position:start], _ECHOED_JSON if same else b""]
            position = start + len(echo) if same else start
        return b"".join([*kept, content[position:]])

    return shorten
