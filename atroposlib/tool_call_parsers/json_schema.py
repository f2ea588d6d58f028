"""The references in a JSON schema: ``{"$ref": "#/$defs/Place"}``, as pydantic and most frameworks write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

CHOICES = ("anyOf", "oneOf", "allOf")
_DEEPEST = 100


def without_references(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with what it refers to in place, as far as that says which types its values have.

    Only references into the same document are followed. One that leads nowhere, or back to where it came from, says
    nothing. The second reference to a thing in a choice is left out, since it allows no more than the first.
    """
    return _Resolver(root).resolve(schema, 0)


class _Resolver:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._followed: set[str] = set()

    def resolve(self, schema: Any, depth: int) -> Mapping[str, Any]:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return {}
        own = {key: value for key, value in schema.items() if key != "$ref"}
        for key in CHOICES:
            if isinstance(own.get(key), list):
                own[key] = [self.resolve(part, depth + 1) for part in own[key]]
        reference = schema.get("$ref")
        return {**self._follow(reference, depth), **own} if isinstance(reference, str) else own

    def _follow(self, reference: str, depth: int) -> Mapping[str, Any]:
        if reference in self._followed:
            return {}
        self._followed.add(reference)
        return self.resolve(_target(self._root, reference), depth + 1)


def _target(root: Mapping[str, Any], reference: str) -> Any:
    file, _, pointer = unquote(reference).partition("#")
    if file or (pointer and not pointer.startswith("/")):
        return None
    at: Any = root
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list):
            at = dict(zip(map(str, range(len(at))), at, strict=True))
        at = at.get(key) if isinstance(at, Mapping) else None
    return at
