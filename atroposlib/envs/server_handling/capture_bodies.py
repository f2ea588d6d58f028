"""The bodies of requests to a capture proxy: read, and refused by the name of the field that is wrong.

What a field is to be is said here as far as the proxy, the chat template or OpenAI's API know it; an engine that got
it wrong might fail, and clients would send it again. Fields of the engine's own are the engine's to judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from atroposlib.envs.server_handling.capture_fields import (
    HOW_IT_COMES,
    MOST_CHOICES,
    NO_LIMIT,
    Asked,
    WrongField,
    chat_arguments,
    text_arguments,
)
from atroposlib.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

LONGEST_TIMEOUT_S = 86_400.0
_EXCERPT = 40
_TEXT, _LIST, _OBJECT = "|text", "|list", "|object"
"""Marks in pydantic's places that are no part of a body."""


def _kind(value: Any) -> str | None:
    kinds = ((str, _TEXT), (list, _LIST), (dict, _OBJECT))
    return next((kind for of, kind in kinds if isinstance(value, of)), None)


def _either(expected: str) -> Discriminator:
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=f"expected {expected}")


def _some(limit: int) -> int:
    if limit < 1 and limit != NO_LIMIT:
        raise PydanticCustomError("limit", "expected 1 or more, or -1 for as many as there is room for")
    return limit


_TO_FIRST = Field(fail_fast=True)
"""Of a long list only the first entry that is wrong is told, and it is not read on."""

Text = Annotated[StrictStr, Tag(_TEXT)]
Texts = Annotated[list[StrictStr], _TO_FIRST, Tag(_LIST)]
Ids = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(fail_fast=True, min_length=1), Tag(_LIST)]
Object = Annotated[dict[str, Any], Tag(_OBJECT)]
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Limit = Annotated[StrictInt, AfterValidator(_some)]


class SessionRequest(BaseModel):
    """What ``POST /sessions/create`` takes; all of it may be left out."""

    model_config = ConfigDict(extra="forbid")

    tool_parser: StrictStr | None = "hermes"
    track_tree: StrictBool = False
    base_url: StrictStr | None = None
    preserve_think_blocks: StrictBool = False
    max_rollout_tokens: Annotated[StrictInt, Field(ge=1)] | None = None


class _Function(BaseModel):
    name: StrictStr
    arguments: Annotated[Text | Object, _either("the arguments as a text of JSON")] | None = None


class _Call(BaseModel):
    id: StrictStr | None = None
    function: _Function


class _Part(BaseModel):
    type: StrictStr
    text: StrictStr | None = None

    def model_post_init(self, _: Any) -> None:
        if self.type == "text" and self.text is None:
            raise PydanticCustomError("part", "a part of the type text needs its text")


Parts = Annotated[list[_Part], _TO_FIRST, Tag(_LIST)]


class _Message(BaseModel):
    role: Annotated[StrictStr, Field(min_length=1)]
    content: Annotated[Text | Parts, _either("a text or a list of parts")] | None = None
    tool_calls: Annotated[list[_Call], _TO_FIRST] | None = None
    tool_call_id: StrictStr | None = None
    name: StrictStr | None = None


class _Schema(BaseModel):
    properties: dict[str, dict[str, Any] | StrictBool] | None = None


class _Offer(BaseModel):
    name: StrictStr
    description: StrictStr | None = None
    parameters: _Schema | None = None


class _Tool(BaseModel):
    type: StrictStr = "function"
    function: _Offer | None = None

    def model_post_init(self, _: Any) -> None:
        if self.type == "function" and self.function is None:
            raise PydanticCustomError("tool", "a tool of the type function needs its function")


class _StreamOptions(BaseModel):
    include_usage: StrictBool | None = None


class _Body(BaseModel):
    """What chats and text completions share."""

    model: StrictStr | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: StrictBool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Limit | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[Text | Texts, _either("a text or a list of texts")] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Number] | None = None
    response_format: dict[str, Any] | None = None
    timeout: Annotated[Number, Field(gt=0, le=LONGEST_TIMEOUT_S)] | None = None


class _ChatBody(_Body):
    messages: Annotated[list[_Message], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: StrictBool | None = None
    tools: Annotated[list[_Tool], _TO_FIRST] | None = None
    reasoning_effort: StrictStr | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class _TextBody(_Body):
    prompt: Annotated[Text | Ids, _either("one prompt: a text, or a list of ids")]


@dataclass(frozen=True)
class Wanted:
    """One request: what it asks for, and how the answer is to come."""

    arguments: dict[str, Any]
    key: str
    """The same for a request and its repetition, which may ask for the answer as a stream or no more so."""
    stream: bool = False
    with_usage: bool = False
    """Whether a stream is to end with its usage."""
    wishes: list[str] = field(default_factory=list)


def read_session(body: bytes) -> SessionRequest:
    """What a session is to be. Raises: WrongField, ConfigError."""
    return _parse(SessionRequest, _fields(body or b"{}"))


def read_chat(body: bytes, template: str) -> Wanted:
    """A chat; ``template`` is the source of the chat template. Raises: WrongField, ConfigError."""
    return _read("chat", body, _ChatBody, lambda fields: chat_arguments(fields, template))


def read_text(body: bytes, vocabulary: int | None) -> Wanted:
    """A text completion, its prompt in ids below ``vocabulary`` if not in text. Raises: WrongField, ConfigError."""
    wanted = _read("text", body, _TextBody, text_arguments)
    prompt = wanted.arguments["prompt"]
    if isinstance(prompt, list) and vocabulary is not None and max(prompt) >= vocabulary:
        index = next(index for index, number in enumerate(prompt) if number >= vocabulary)
        raise WrongField(f"prompt[{index}]", f"the ids of this model are below {vocabulary}, not {prompt[index]}")
    return wanted


def _read(kind: str, body: bytes, model: type[_Body], arguments: Callable[[Mapping[str, Any]], Asked]) -> Wanted:
    fields = _flat(_fields(body))
    key = _key(kind, fields)
    checked = _parse(model, fields)
    asked = arguments(fields)
    with_usage = bool(checked.stream_options and checked.stream_options.include_usage)
    return Wanted(asked.arguments, key, bool(checked.stream), with_usage, asked.wishes)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        raise ConfigError(f"the body is not JSON: {error}; near {near!r}") from error
    if not isinstance(fields, dict):
        raise ConfigError("the body has to be a JSON object")
    return fields


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """``extra_body`` is what OpenAI's clients call fields that they put into the body; so it is read here, too."""
    extra = fields.get("extra_body")
    if not isinstance(extra, dict | None) or "extra_body" in (extra or ()):
        raise WrongField("extra_body", "expected an object whose fields are those of the body; send these themselves")
    return {name: value for name, value in fields.items() if name != "extra_body"} | (extra or {})


def _key(kind: str, fields: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(kind.encode())
    for name, value in fields.items():
        if name in HOW_IT_COMES:
            continue
        try:
            digest.update(b"\n" + orjson.dumps([name, value]))
        except orjson.JSONEncodeError as error:  # of what was JSON before
            raise WrongField(name, "it is nested too deeply; 250 levels are the most") from error
    return digest.hexdigest()


def _parse(kind: type[M], fields: dict[str, Any]) -> M:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        message = "expected an object" if first["type"] == "model_type" else first["msg"]
        raise WrongField(_place(first["loc"]), message) from error


def _place(location: Sequence[int | str]) -> str:
    """A place as OpenAI's API writes it: ``messages[0].content``."""
    steps = [step for step in location if step not in (_TEXT, _LIST, _OBJECT)]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
