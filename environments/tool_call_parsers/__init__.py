"""The parsers of ``atroposlib.tool_call_parsers`` with the interface that agent code knows.

``get_parser("hermes").parse(text)`` returns ``(content, tool_calls)``; ``tool_calls`` are objects of the ``openai``
package, or ``None`` where the model called nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.tool_call_parsers import ParsedMessage, registry

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageToolCall

__all__ = ["ParseResult", "ToolCallParser", "get_parser", "list_parsers", "register_parser"]

ParseResult = tuple["str | None", "list[ChatCompletionMessageToolCall] | None"]

_own_parsers: dict[str, type[ToolCallParser]] = {}


class ToolCallParser(ABC):
    """A parser in terms of the ``openai`` package; subclasses may be registered."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] | None = None) -> ParseResult:
        """Content (``None``: nothing but calls) and calls (``None``: no call)."""


class _Face(ToolCallParser):
    def __init__(self, name: str) -> None:
        self._parser = registry.get_parser(name)

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] | None = None) -> ParseResult:
        return as_openai(self._parser.parse(text, tools))


def as_openai(message: ParsedMessage) -> ParseResult:
    """A parsed message in the types of the ``openai`` package; a broken call keeps its raw text as arguments."""
    if not message.tool_calls:
        return message.content, None
    from openai.types.chat import ChatCompletionMessage

    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    spoken = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": message.content, "tool_calls": calls}
    )
    return message.content, spoken.tool_calls


def register_parser(name: str) -> Callable[[type[ToolCallParser]], type[ToolCallParser]]:
    """Register a subclass of ``ToolCallParser`` under a name."""

    def register(parser: type[ToolCallParser]) -> type[ToolCallParser]:
        _own_parsers[name] = parser
        return parser

    return register


def get_parser(name: str) -> ToolCallParser:
    """A parser of this format.

    Raises:
        KeyError: there is none; the message lists those that are.
    """
    return _own_parsers[name]() if name in _own_parsers else _Face(name)


def list_parsers() -> list[str]:
    """All names, in order."""
    return sorted({*registry.list_parsers(), *_own_parsers})
