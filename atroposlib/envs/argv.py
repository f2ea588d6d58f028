"""Command-line words to typed values.

A flag is ``--name value``, ``--name=value`` or a bare ``--name``; its values reach to the next word that begins with
two dashes, so negative numbers are values. The type of the field decides how the words are read:

    bool     bare, or true/false, yes/no, on/off, 1/0
    list     ``a b c``, ``a,b,c``, or JSON (YAML's ``[a, b]`` too)
    dict     JSON, or one entry at a time: ``--env.extra_body.top_k 5``
    None     the word ``None``, where the field may be None
    others   one word; pydantic does the rest
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import EnumMeta
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import orjson
from pydantic import BaseModel

from atroposlib.errors import ConfigError

_FLAG = re.compile(r"--[A-Za-z_]")
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
_NONE_WORDS = frozenset({"None", "none", "null"})


@dataclass(frozen=True)
class Flag:
    """One flag as it was typed. ``name`` has no dashes; ``joined`` says that its one value came after ``=``."""

    name: str
    values: tuple[str, ...]
    joined: bool = False

    @property
    def spelled(self) -> str:
        return f"--{self.name}"


def split_flags(words: Sequence[str]) -> list[Flag]:
    """Group words into flags, in their order.

    Raises: ConfigError for a word that belongs to no flag.
    """
    flags: list[Flag] = []
    for word in words:
        if word == "-h":
            flags.append(Flag("help", ()))
        elif _FLAG.match(word):
            name, equals, value = word[2:].partition("=")
            flags.append(Flag(name, (value,) if equals else (), joined=bool(equals)))
        elif not flags or flags[-1].joined or flags[-1].name == "help":
            raise ConfigError(f"unexpected word {word!r}; a flag begins with --, such as --env.group_size 4")
        else:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
    return flags


class Shape:
    """What a field's annotation allows, as far as reading words needs to know."""

    def __init__(self, annotation: Any) -> None:
        members = list(_union_members(annotation))
        self.members = tuple(member for member in members if member is not type(None))
        self.optional = len(members) > len(self.members)

    @property
    def boolean(self) -> bool:
        return bool in self.members

    @property
    def sequence(self) -> bool:
        return any(_is_a(member, (Sequence, AbstractSet)) for member in self.members)

    @property
    def mapping(self) -> bool:
        return any(_is_a(member, (Mapping,)) or self._is_model(member) for member in self.members)

    @property
    def text(self) -> bool:
        """Whether any word at all is a value as it stands."""
        return str in self.members

    @property
    def anything(self) -> bool:
        return any(member is Any or member is object for member in self.members)

    def inner(self, key: str) -> Shape:
        """The shape of the entry ``key`` of a mapping or model."""
        for member in self.members:
            if self._is_model(member) and key in member.model_fields:
                return Shape(member.model_fields[key].annotation)
            if _is_a(member, (Mapping,)) and len(get_args(member)) == 2:
                return Shape(get_args(member)[1])
        return Shape(Any)

    def element(self) -> Shape:
        """The shape of one element of a sequence."""
        for member in self.members:
            if _is_a(member, (Sequence, AbstractSet)) and get_args(member):
                return Shape(get_args(member)[0])
        return Shape(Any)

    @staticmethod
    def _is_model(member: Any) -> bool:
        return isinstance(member, type) and issubclass(member, BaseModel)

    def describe(self) -> str:
        """The type in a reader's words, for help and errors."""
        words = [_name(member) for member in self.members]
        return " or ".join([*words, "None"] if self.optional else words)


def _union_members(annotation: Any) -> Iterator[Any]:
    annotation = getattr(annotation, "__value__", annotation)  # `type X = ...`
    if get_origin(annotation) is Annotated:
        yield from _union_members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _union_members(member)
    else:
        yield annotation


def _is_a(member: Any, kinds: tuple[type, ...]) -> bool:
    origin = get_origin(member) or member
    return isinstance(origin, type) and issubclass(origin, kinds) and not issubclass(origin, (str, bytes))


def _name(member: Any) -> str:
    if get_origin(member) is Literal:
        return " | ".join(str(choice) for choice in get_args(member))
    if _is_a(member, (Mapping,)) or Shape._is_model(member):
        return "dict"
    if _is_a(member, (Sequence, AbstractSet)):
        arguments = [argument for argument in get_args(member) if argument is not Ellipsis]
        return f"list of {Shape(arguments[0]).describe()}" if arguments else "list"
    if isinstance(member, EnumMeta):
        choices: Mapping[str, Any] = member.__members__
        return " | ".join(str(choice.value) for choice in choices.values())
    return str(getattr(member, "__name__", member))


def read_value(flag: Flag, shape: Shape) -> Any:
    """The value that ``flag`` gives to a field of this shape. Type errors are left to pydantic.

    Raises: ConfigError for a missing value, for too many, or for broken JSON.
    """
    if not flag.values:
        if shape.boolean:
            return True
        raise ConfigError(f"{flag.spelled} needs a value ({shape.describe()})")
    if len(flag.values) == 1:
        return _read_word(flag.values[0], shape, flag.spelled)
    if not shape.sequence:
        extra = " ".join(flag.values[1:])
        raise ConfigError(f"{flag.spelled} takes one value, but {extra!r} follows; quote a value that holds spaces")
    element = shape.element()
    return [_read_word(word, element, flag.spelled) for word in flag.values]


def _read_word(word: str, shape: Shape, spelled: str) -> Any:
    if shape.optional and word == "None":
        return None
    if shape.text and not (word[:1] in ("[", "{") and (shape.sequence or shape.mapping)):
        return word
    if shape.optional and word in _NONE_WORDS:
        return None
    if shape.boolean and word.lower() in _TRUE | _FALSE and not _is_number_too(word, shape):
        return word.lower() in _TRUE
    if shape.anything:
        return _read_literal(word)
    if word[:1] in ("[", "{") and (shape.sequence or shape.mapping):
        return _read_structure(word, spelled)
    if shape.sequence:
        element = shape.element()
        return [_read_word(part.strip(), element, spelled) for part in word.split(",")]
    if shape.mapping:
        raise ConfigError(f"{spelled} is a dict: give JSON, or single entries as {spelled}.KEY VALUE")
    return word


def _is_number_too(word: str, shape: Shape) -> bool:
    return word in ("0", "1") and (int in shape.members or float in shape.members)


def _read_literal(word: str) -> Any:
    """A value of unknown type: JSON where it is JSON, Python's three words, else the text."""
    words = {"None": None, "True": True, "False": False}
    if word in words:
        return words[word]
    try:
        return orjson.loads(word)
    except orjson.JSONDecodeError:
        return word


def _read_structure(word: str, spelled: str) -> Any:
    try:
        return orjson.loads(word)
    except orjson.JSONDecodeError as json_error:
        import yaml

        try:
            return yaml.safe_load(word)
        except yaml.YAMLError:
            raise ConfigError(f"{spelled}: {word!r} is neither JSON nor YAML ({json_error})") from None
