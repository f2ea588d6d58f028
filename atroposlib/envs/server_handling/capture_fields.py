"""What becomes of the fields of a request in OpenAI's dialect, where the answer is completed from ids.

A field reaches the engine or the chat template, or it concerns OpenAI's own service only, or its request is refused
by the field's name. None is dropped that would change the answer. A field that is not listed here is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atroposlib.errors import ConfigError

HOW_IT_COMES = ("stream", "stream_options")
"""Fields that say how an answer is to come, and not what it is to be."""
ONLY_FOR_OPENAI = (
    *("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "store", "user"),
)
"""Fields that concern OpenAI's own service, and that an engine may refuse."""

MOST_CHOICES = 128
"""Choices that one request may ask for, as in OpenAI's API."""
NO_LIMIT = -1
"""As ``max_tokens``: as many as there is room for."""
ARGUMENTS_OF_TEMPLATES = frozenset(
    (
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        *("max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"),
        *("sanitize_control_tokens", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation"),
    )
)
"""What ``apply_chat_template`` takes beside the variables of the template."""

_Refused = Mapping[str, tuple[tuple[Any, ...], str]]
"""By name: the values that ask for nothing, and what to do about others."""
_REFUSED: _Refused = {
    "input_ids": ((), "send messages, or a prompt of ids to /completions"),
    "echo": ((False,), "the prompt is recorded anyway; leave it out"),
    "use_beam_search": ((False,), "only samples are recorded; leave it out"),
    "best_of": ((1,), "each completion is recorded; send n instead"),
    "prompt_embeds": ((), "only ids are recorded; send a text or ids"),
    "prompt_logprobs": ((), "only the logprob of what was sampled is recorded; leave it out"),
    "self": ((), "no such field is known; leave it out"),
    "split": (("train",), "an agent does not choose its share of the engine; leave it out"),
    "truncate_prompt_tokens": ((), "what is recorded is the whole prompt; send a shorter one"),
}
_REFUSED_IN_CHATS: _Refused = {
    **_REFUSED,
    "add_generation_prompt": ((True,), "a turn always begins with the template's own; leave it out"),
    "audio": ((), "answers are text; leave it out"),
    "chat_template": ((), "the template is that of the proxy's tokenizer; leave it out"),
    "continue_final_message": ((False,), "an answer that was begun by somebody else is no sample; leave it out"),
    "documents": (([],), "put them into a message"),
    "function_call": (("auto", "none"), "send tools and tool_choice"),
    "functions": (([],), "send tools"),
    "modalities": ((["text"],), 'answers are text; send ["text"] or leave it out'),
    "moderation": ((), "nothing here moderates; leave it out"),
    "parallel_tool_calls": (
        (True,),
        "a model that is sampled freely cannot be held to one call; send true or leave it out, and run the calls of a "
        "turn one after the other",
    ),
    "prediction": ((), "leave it out"),
    "prompt": ((), "send messages, or the prompt to /completions"),
    "top_logprobs": ((0,), "only the logprob of what was sampled is recorded; send logprobs alone"),
    "verbosity": (("medium",), "say in a message how long the answer is to be"),
    "web_search_options": ((), "nothing here searches the web; offer a tool"),
}
_REFUSED_IN_TEXTS: _Refused = {
    **_REFUSED,
    "chat_template_kwargs": (({},), "a text has no template; send messages to /chat/completions"),
    "messages": ((), "send them to /chat/completions"),
    "logprobs": ((), "GET /{session}/nodes tells the logprobs of what was sampled; leave it out"),
    "suffix": (("",), "a text is only continued at its end; leave it out"),
    "tools": (([],), "send messages to /chat/completions"),
}
_TOOL_CHOICES = 'send "auto" or "none", and offer that tool alone'


class WrongField(ConfigError):
    """A field of a request that is not what it has to be. ``name``: its place, such as ``messages[0].content``."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class UnsupportedField(WrongField):
    """A field of a request that the answer would not honour."""


@dataclass(frozen=True)
class Asked:
    """The arguments of a request, and the fields that are only a wish: they were taken, and nothing enforces them."""

    arguments: dict[str, Any]
    wishes: list[str] = field(default_factory=list)


def text_arguments(fields: Mapping[str, Any]) -> Asked:
    """Of a text completion. Raises: UnsupportedField."""
    return Asked(_taken(fields, _REFUSED_IN_TEXTS))


def chat_arguments(fields: Mapping[str, Any], template: str) -> Asked:
    """Of a chat. The role ``developer``, which templates do not know, is ``system``.

    ``template``: the source of the chat template. Raises: UnsupportedField. What has the wrong type was refused before
    (``capture_bodies``).
    """
    asked = Asked(_taken(fields, _REFUSED_IN_CHATS))
    arguments = asked.arguments
    arguments["messages"] = [
        {**message, "role": "system"} if message.get("role") == "developer" else message
        for message in arguments["messages"]
    ]
    _check_tools(arguments.get("tools"))
    _check_variables(arguments.get("chat_template_kwargs"))
    _choose_tools(asked)
    _set_effort(arguments, template)
    return asked


def _taken(fields: Mapping[str, Any], refused: _Refused) -> dict[str, Any]:
    taken = {}
    for name, value in fields.items():
        if value is None or name in HOW_IT_COMES or name in ONLY_FOR_OPENAI:
            continue
        if name not in refused:
            taken[name] = value
            continue
        harmless, instead = refused[name]
        if value not in harmless:
            raise UnsupportedField(name, f"{_shown(value)} is not supported with completions from ids; {instead}")
    if taken.get("response_format") == {"type": "text"}:
        del taken["response_format"]
    for name in ("max_tokens", "max_completion_tokens"):
        if taken.get(name) == NO_LIMIT:
            del taken[name]
    return taken


def _check_tools(tools: Any) -> None:
    for tool in tools or ():
        kind = tool.get("type", "function")
        if kind != "function":
            raise UnsupportedField("tools", f'a tool of the type {_shown(kind)} is not supported; send "function"')


def _check_variables(variables: Mapping[str, Any] | None) -> None:
    """What the tokenizer would take as an argument of its own, such as another template, is no variable."""
    for name in variables or ():
        if name in ARGUMENTS_OF_TEMPLATES:
            raise UnsupportedField(f"chat_template_kwargs.{name}", "it is no variable of the template; leave it out")


def _choose_tools(asked: Asked) -> None:
    """``none`` is the template's to show: it is not told of the tools. ``required`` is what some agents always send."""
    choice = asked.arguments.pop("tool_choice", "auto")
    if choice == "none":
        asked.arguments["tool_choice"] = choice
    elif choice == "required":
        asked.wishes.append("tool_choice")
    elif choice != "auto":
        raise UnsupportedField(
            "tool_choice", f"{_shown(choice)} cannot be enforced on completions from ids; {_TOOL_CHOICES}"
        )


def _set_effort(arguments: dict[str, Any], template: str) -> None:
    """``reasoning_effort`` is a variable of the template, where it has such a one."""
    effort = arguments.pop("reasoning_effort", None)
    if effort is None:
        return
    if "reasoning_effort" not in template:
        raise UnsupportedField(
            "reasoning_effort",
            "the model's chat template knows none; leave it out, or send what it knows by chat_template_kwargs",
        )
    arguments["chat_template_kwargs"] = {"reasoning_effort": effort, **(arguments.get("chat_template_kwargs") or {})}


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else shown[:99] + "…"
