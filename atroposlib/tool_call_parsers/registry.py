"""Which parser reads which format."""

from __future__ import annotations

from collections.abc import Callable

from atroposlib.tool_call_parsers.base import ToolCallParser

_parsers: dict[str, type[ToolCallParser]] = {}


def register_parser(name: str) -> Callable[[type[ToolCallParser]], type[ToolCallParser]]:
    """Register a class under a name; a class may have several. A later class of the same name takes its place."""

    def register(parser: type[ToolCallParser]) -> type[ToolCallParser]:
        if not parser.__dict__.get("name"):
            parser.name = name
        _parsers[name] = parser
        return parser

    return register


def get_parser(name: str) -> ToolCallParser:
    """A parser of this format.

    Raises:
        KeyError: there is none; the message lists those that are.
    """
    if name not in _parsers:
        raise KeyError(f"no tool-call parser is called {name!r}; there are: {', '.join(list_parsers())}")
    return _parsers[name]()


def list_parsers() -> list[str]:
    """All names, in order."""
    return sorted(_parsers)
