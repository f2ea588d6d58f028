"""How a row is read: templates, chat-shaped prompts, right answers, solved examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions.columns import value_at
from environments.dataset_environment.questions.question import Message

if TYPE_CHECKING:
    from jinja2 import Template

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
"""What roles are called in data sets that follow ShareGPT."""
_MARKS = ("{{", "{%", "{#")


class RowTemplate:
    """A Jinja template over the fields of a row (and ``row`` itself); an unknown field is an error.

    Raises: ConfigError where it is no template.
    """

    def __init__(self, setting: str, source: str) -> None:
        from jinja2 import StrictUndefined, TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self._setting = setting
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            self._template: Template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"{setting}, line {error.lineno}: {error.message}") from error

    def render(self, row: Mapping[str, Any]) -> str:
        """Raises: ConfigError for a field that the row does not have."""
        from jinja2 import TemplateError

        try:
            return self._template.render({**row, "row": row})
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ConfigError(f"{self._setting}: {error}. The fields of a row are: {', '.join(row)}") from error


def is_template(text: str) -> bool:
    """Whether a text has marks of Jinja in it."""
    return any(mark in text for mark in _MARKS)


class RowReader:
    """Reads rows as the settings say: conversations and right answers.

    Raises: ConfigError for a template that cannot be read, also when it is used.
    """

    def __init__(self, config: DatasetEnvConfig) -> None:
        self._config = config
        self._prompt = RowTemplate("prompt_template", config.prompt_template) if config.prompt_template else None
        self._answer = RowTemplate("answer_template", config.answer_template) if config.answer_template else None
        system = config.system_prompt or ""
        self._system = RowTemplate("system_prompt", system) if is_template(system) else None

    def is_question(self, row: Mapping[str, Any]) -> bool:
        """Whether the row holds a question at all."""
        question, _ = self._question(row)
        return any(str(message.get("content") or "").strip() for message in question)

    def question_text(self, row: Mapping[str, Any]) -> str:
        """What two rows have in common that put the same question."""
        question, _ = self._question(row)
        return json.dumps([[message["role"], message["content"]] for message in question], ensure_ascii=False)

    def conversation(self, row: Mapping[str, Any], shown: Sequence[Message] = ()) -> tuple[Message, ...]:
        """System message, the solved examples ``shown``, question."""
        question, _ = self._question(row)
        if question and question[0]["role"] == "system":
            return (question[0], *shown, *question[1:])
        return (*self._system_message(row), *shown, *question)

    def answer(self, row: Mapping[str, Any]) -> Any:
        """The right answer: by its template, from its field, or the one that a chat-shaped prompt ends with."""
        if self._answer is not None:
            return self._answer.render(row)
        value = value_at(row, self._config.answer_field)
        return self._question(row)[1] if value is None else value

    def ground_truth(self, row: Mapping[str, Any]) -> Any:
        """The bare right answer of ``ground_truth_field``, if there is one."""
        return value_at(row, self._config.ground_truth_field)

    def has_answer(self, row: Mapping[str, Any]) -> bool:
        """Whether there is a right answer of either kind."""
        return self.ground_truth(row) is not None or self.answer(row) is not None

    def _system_message(self, row: Mapping[str, Any]) -> list[Message]:
        return [*self._config.system_message(self._system.render(row) if self._system else self._config.system_prompt)]

    def _question(self, row: Mapping[str, Any]) -> tuple[list[Message], str | None]:
        if self._prompt is not None:
            return [{"role": "user", "content": self._prompt.render(row)}], None
        field = self._config.prompt_field
        return read_prompt(value_at(row, field), field)


def read_prompt(value: Any, field: str) -> tuple[list[Message], str | None]:
    """A prompt as messages, without the answer that it may end with, and that answer.

    Raises: ConfigError for what is neither text nor chat.
    """
    if value is None:
        return [], None
    if isinstance(value, (str, int, float)):
        return [{"role": "user", "content": str(value)}], None
    if isinstance(value, Sequence) and all(isinstance(each, Mapping) for each in value):
        messages = [_read_message(each, field) for each in value]
        answer = None
        while messages and messages[-1]["role"] == "assistant":
            answer = str(messages.pop()["content"])
        return messages, answer
    raise ConfigError(
        f"prompt_field: {field!r} holds a {type(value).__name__}, neither a text nor a list of chat messages; "
        "write a prompt_template that makes a text of it"
    )


def _read_message(message: Mapping[str, Any], field: str) -> Message:
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    if not isinstance(role, str):
        raise ConfigError(f"prompt_field: a message of {field!r} has no role: {dict(message)!r:.200}")
    return {"role": _ROLES.get(role, role), "content": _text(content)}


def _text(content: Any) -> str:
    """The text of a message; its text parts where it is a list of parts."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def solved(prompt: str, answer: Any) -> list[Message]:
    """An example as a finished exchange."""
    shown = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": shown}]
