"""A conversation as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

THOUGHT_CHARS = 300
ARGUMENT_CHARS = 200
RESULT_CHARS = 500


def format_conversation(messages: Iterable[Mapping[str, Any]]) -> str:
    """Every message under its role, parts joined by blank lines; long thoughts, arguments and results are cut."""
    return "\n\n".join(part for message in messages for part in _parts(message))


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    role, content = message.get("role"), _text(message.get("content"))
    if role == "tool":
        yield f"[TOOL RESULT] {_cut(content, RESULT_CHARS)}"
        return
    if thought := message.get("reasoning_content"):
        yield f"[ASSISTANT thinking] {_cut(str(thought), THOUGHT_CHARS)}"
    if content:
        yield f"[{str(role).upper()}]\n{content}"
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield f"[TOOL CALL] {function.get('name')}({_cut(str(function.get('arguments')), ARGUMENT_CHARS)})"


def _text(content: object) -> str:
    """The text of a content that may be absent, text, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", part.get("type"))) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
