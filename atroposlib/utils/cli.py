"""Pydantic models and dictionaries behind command lines: prefixes, merging, defaults."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, create_model


def get_prefixed_pydantic_model(base_model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """Return a model with the fields of ``base_model``, each name with ``prefix`` before it."""
    fields: dict[str, Any] = {
        f"{prefix}{name}": (field.annotation, copy.copy(field)) for name, field in base_model.model_fields.items()
    }
    return create_model(f"{prefix.capitalize()}{base_model.__name__}", **fields)


def merge_dicts(*dicts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings, later ones winning; where both values are dicts, these are merged in turn."""
    result: dict[str, Any] = {}
    for each in dicts:
        for key, value in each.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge_dicts(result[key], value) if both else value
    return result


def extract_namespace(model: Any, prefix: str) -> dict[str, Any]:
    """Return the entries of a model or mapping whose names begin with ``prefix``, without it.

    Raises: TypeError for something that is neither.
    """
    if isinstance(model, Mapping):
        data: Mapping[str, Any] = model
    elif hasattr(model, "model_dump"):
        data = model.model_dump()
    elif hasattr(model, "to_dict"):
        data = model.to_dict()
    else:
        raise TypeError("Model must have model_dump(), to_dict(), or be a dict.")
    return {key[len(prefix) :]: value for key, value in data.items() if key.startswith(prefix)}


def adjust_model_defaults(model_class: type[BaseModel], defaults: Mapping[str, Any] | BaseModel) -> type[BaseModel]:
    """Return a subclass ``<name>WithDefaults`` whose fields default to ``defaults`` where these name them."""
    values = (
        {name: getattr(defaults, name) for name in type(defaults).model_fields}
        if isinstance(defaults, BaseModel)
        else dict(defaults)
    )
    changed: dict[str, Any] = {}
    for name, field in model_class.model_fields.items():
        if name in values:
            new = copy.copy(field)
            new.default, new.default_factory = values[name], None
            changed[name] = (field.annotation, new)
    return create_model(f"{model_class.__name__}WithDefaults", __base__=model_class, **changed)


def get_double_dash_flags(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Read ``--key value``, ``--key=value`` and bare ``--key`` (True) from the command line; other words are skipped.

    A value may be a negative number; the word None is None; the last of equal keys counts. Values stay texts.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    flags: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", "")
        if not name:
            continue
        if equals:
            flags[name] = value
        else:
            flags[name] = True if following is None or _is_flag(following) else following
        if flags[name] == "None":
            flags[name] = None
    return flags


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
