"""Parameters of rewards as configuration gives them: known by name, and of the type that the class asks for."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError

_EVERY_REWARD: Final = ("weight", "name")


def checked_parameters(kind: str, made_from: type[RewardFunction], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, each of its type: ``"1e-6"``, which YAML reads as a text, becomes a number where one is wanted.

    Raises: ConfigError for an unknown parameter (with those there are) or one that cannot be read.
    """
    known = parameters_of(made_from)
    unknown = [name for name in given if name not in known]
    if unknown and not _reads_others(made_from):
        guess = suggestion(unknown[0], known)
        raise ConfigError(f"reward {kind!r} has no parameter {unknown[0]!r}{guess}; it takes {', '.join(known)}")
    hints = _type_hints(made_from)
    return {
        name: _read(kind, name, value, hints.get(name), known[name].default if name in known else None)
        for name, value in given.items()
    }


def parameters_of(made_from: type) -> dict[str, inspect.Parameter]:
    """What the constructors of a class and its bases take by name, those of every reward last."""
    found: dict[str, inspect.Parameter] = {}
    for each in made_from.__mro__:
        constructor = each.__dict__.get("__init__")
        if constructor is None or each is object:
            continue
        signature = inspect.signature(constructor).parameters
        named = [p for p in signature.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        found |= {each.name: each for each in named if each.name not in found and each.name != "self"}
        if not any(p.kind is p.VAR_KEYWORD for p in signature.values()):
            break
    last = {name: found.pop(name) for name in _EVERY_REWARD if name in found}
    return found | last


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` where something is called nearly so."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _reads_others(made_from: type[RewardFunction]) -> bool:
    """Without a constructor of its own, a reward can only read its parameters from ``config``."""
    return made_from.extra_parameters or made_from.__init__ is RewardFunction.__init__


def _type_hints(made_from: type) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for each in reversed(made_from.__mro__):
        constructor = each.__dict__.get("__init__")
        if inspect.isfunction(constructor):
            hints |= _hints_of(constructor)
    return hints


def _hints_of(constructor: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(constructor)
    except NameError:  # an annotation that is imported for type checkers only
        return {}


def _read(kind: str, name: str, value: Any, hint: Any, default: Any) -> Any:
    if hint is None:
        return _like(value, default)
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        complaint = error.errors()[0]["msg"]
        raise ConfigError(f"reward {kind!r}: parameter {name!r} is {value!r:.100}: {complaint}") from error


def _like(value: Any, default: Any) -> Any:
    """A text as a number where the parameter has no annotation, and a number as its default."""
    if not isinstance(value, str) or isinstance(default, bool) or not isinstance(default, (int, float)):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if isinstance(default, int) and number.is_integer() else number
