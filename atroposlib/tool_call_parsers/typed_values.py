"""Values that a format writes without types, read by the JSON schema of the parameter and never by guess."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atroposlib.tool_call_parsers.json_text import JsonValue, read_json, read_literal

_MISSING = object()
_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LITERALS = {"true": True, "false": False}
_LONGEST_NUMBER = 400


def value_of(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of a parameter; the text itself where the schema says string, says nothing, or does not fit."""
    for kind in _kinds(schema):
        value = _READERS[kind](text)
        if value is not _MISSING:
            return value
    return text


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The JSON types that the schema allows, the strict ones first, so that a string is the last resort."""
    found = set(_declared(schema)) & set(_READERS)
    return [kind for kind in _READERS if kind in found]


def _declared(schema: Mapping[str, Any]) -> Sequence[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return [kinds]
    if isinstance(kinds, list):
        return [kind for kind in kinds if isinstance(kind, str)]
    for choice in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(choice), list):
            return [kind for part in schema[choice] if isinstance(part, Mapping) for kind in _declared(part)]
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema[k] for k in ("const",) if k in schema]
    return [_TYPE_NAMES[type(value)] for value in values if type(value) in _TYPE_NAMES]


_TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
}


def _null(text: str) -> Any:
    return None if text.strip().lower() in ("null", "none") else _MISSING


def _boolean(text: str) -> Any:
    return _LITERALS.get(text.strip().lower(), _MISSING)


def _integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text.strip()) else _MISSING


def _number(text: str) -> Any:
    stripped = text.strip()
    if _INTEGER.fullmatch(stripped):
        return int(stripped)
    fits = len(stripped) <= _LONGEST_NUMBER and _NUMBER.fullmatch(stripped)
    number = float(stripped) if fits else float("inf")
    return number if abs(number) != float("inf") else _MISSING


def _json_of(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = read_json(text, 0)
        if not isinstance(value, JsonValue) or text[value.end :].strip():
            value = read_literal(text)
        return value.value if isinstance(value, JsonValue) and isinstance(value.value, kind) else _MISSING

    return read


def _string(text: str) -> Any:
    return text


_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _json_of(dict),
    "array": _json_of(list),
    "string": _string,
}


def is_json(text: str) -> bool:
    """Whether a whole text is one JSON value."""
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
