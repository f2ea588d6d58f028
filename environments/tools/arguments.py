"""Arguments of a tool call: made from what a model wrote, checked against the tool's schema.

Models write ``"42"`` for 42, ``"true"`` for true, one string where a list is wanted. What has one meaning is
converted; everything else is an error that tells the model what the tool takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from environments.tools.base import Arguments, ToolFailure

_WORDS = {"true": True, "false": False}


def parse_arguments(raw: object) -> Arguments:
    """The arguments as an object. None, "" and null mean none; an object may come parsed or as JSON text.

    Raises: ToolFailure where it is neither.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return {}
    value = _parse_json(raw) if isinstance(raw, str) else raw
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ToolFailure(
            f"Tool arguments must be a JSON object, not {_json_type(value)}. Please retry with an object."
        )
    return {str(name): entry for name, entry in value.items()}


def check_arguments(arguments: Arguments, schema: Mapping[str, Any]) -> Arguments:
    """The arguments converted to the types of ``schema``; a null for an optional parameter counts as absent.

    Raises: ToolFailure for a missing, an unknown or a mistyped parameter.
    """
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    unknown = [name for name in arguments if name not in properties]
    if unknown:
        raise ToolFailure(f"Unknown parameter {unknown[0]!r}. Parameters: {', '.join(properties) or 'none'}.")
    given = {name: value for name, value in arguments.items() if value is not None}
    missing = [name for name in schema.get("required", ()) if name not in given]
    if missing:
        raise ToolFailure(f"Missing parameter {missing[0]!r}. Required: {', '.join(schema['required'])}.")
    return {name: _convert(name, value, properties[name]) for name, value in given.items()}


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise ToolFailure(f"Invalid JSON in tool arguments: {error}. Please retry with valid JSON.") from error


def _convert(name: str, value: object, schema: Mapping[str, Any]) -> object:
    wanted = schema.get("type")
    converter = _CONVERTERS.get(wanted) if isinstance(wanted, str) else None
    try:
        converted: Any = converter(value) if converter else value
        if wanted == "array":
            items = schema.get("items", {})
            converted = [_convert(f"{name}[{i}]", entry, items) for i, entry in enumerate(converted)]
        elif wanted == "object" and "properties" in schema:
            converted = check_arguments(dict(converted), schema)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailure(f"Parameter {name!r} must be of type {wanted}, not {_json_type(value)}.") from error
    choices = schema.get("enum")
    if choices is not None and converted not in choices:
        raise ToolFailure(f"Parameter {name!r} must be one of {', '.join(map(str, choices))}.")
    return converted


def _as_string(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return json.dumps(value)
    raise TypeError


def _as_number(value: object) -> int | float:
    if isinstance(value, str):
        value = json.loads(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return value


def _as_integer(value: object) -> int:
    number = _as_number(value)
    if int(number) != number:
        raise ValueError
    return int(number)


def _as_boolean(value: object) -> bool:
    if isinstance(value, str):
        return _WORDS[value.strip().lower()] if value.strip().lower() in _WORDS else _refuse()
    return value if isinstance(value, bool) else _refuse()


def _as_array(value: object) -> list[object]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = json.loads(value)
    if isinstance(value, Mapping) or not isinstance(value, list):
        return [value]
    return value


def _as_object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, Mapping) else _refuse()


def _refuse() -> Any:
    raise TypeError


_CONVERTERS: Mapping[str, Callable[[object], Any]] = {
    "string": _as_string,
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "array": _as_array,
    "object": _as_object,
}


def _json_type(value: object) -> str:
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
