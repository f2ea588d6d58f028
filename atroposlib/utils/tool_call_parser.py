"""One tool call out of a model's text: JSON with ``name`` and ``arguments`` between tags."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

logger = logging.getLogger(__name__)

ERROR: Final = "-ERROR-"


def extract_tool_call(text: str, preferred_tags: Sequence[str] | None = None) -> str | None:
    """Return what stands between the first pair of a preferred tag (``tool_call``); None where there is no pair."""
    for tag in preferred_tags or ("tool_call",):
        found = re.search(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL)
        if found:
            return found.group(1).strip()
    return None


def parse_tool_call(
    response: str,
    available_tools: Sequence[Mapping[str, Any]] | None = None,
    preferred_tags: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], bool]:
    """Return (name, arguments, is_error) of the first tool call in a response.

    The name is ``-ERROR-`` where there is none, it cannot be read, or no tool of that name is available. Read as JSON;
    what is not JSON may be a Python literal (models write single quotes).
    """
    content = extract_tool_call(response, preferred_tags)
    call = None if not content else _read_object(content)
    if call is None:
        logger.debug("no tool call in %.200r", response)
        return ERROR, {}, True
    name, arguments = call.get("name"), call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _read_object(arguments)
    if not isinstance(arguments, dict):
        return ERROR, {}, True
    if not isinstance(name, str) or not name or (available_tools and name not in _names(available_tools)):
        return ERROR, arguments, True
    return name, arguments, False


def _read_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        value = _read_literal(text)
    return value if isinstance(value, dict) else None


def _read_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _names(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for tool in tools if (name := tool.get("name") or tool.get("function", {}).get("name"))}
