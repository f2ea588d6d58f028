"""A tokenizer whose chat template may build lists.

Some templates, Qwen's tool-calling ones among them, call ``list.append``; the sandbox in which transformers renders
templates forbids that. Here the template is rendered in Jinja's ordinary sandbox, on a copy of the messages.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


class QwenFixedTokenizer:
    """Wraps the tokenizer of this name or path; everything but the chat template is the tokenizer's own."""

    def __init__(self, model_name_or_path: str, **kwargs: Any) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_name_or_path, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Render a conversation: a list of ids, a dict with ``input_ids`` if asked, or the text (``tokenize=False``).

        Further keywords that an encoder knows (``truncation``, ``max_length``, ``padding``, ``return_tensors``) go to
        the tokenizer, all others to the template.
        """
        encoder_options = {key: kwargs.pop(key) for key in _ENCODER_OPTIONS if key in kwargs}
        text = self._template.render(
            messages=copy.deepcopy(list(conversation)),
            tools=copy.deepcopy(tools),
            add_generation_prompt=add_generation_prompt,
            **{**self.tokenizer.special_tokens_map, **kwargs},
        )
        if not tokenize:
            return text
        encoded = self.tokenizer(text, add_special_tokens=False, **encoder_options)
        return encoded if return_dict else encoded["input_ids"]

    @cached_property
    def _template(self) -> Template:
        from jinja2.sandbox import SandboxedEnvironment

        environment = SandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
        return environment.from_string(self.tokenizer.chat_template)


_ENCODER_OPTIONS = ("truncation", "max_length", "padding", "return_tensors")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """JSON as templates mean it: no HTML escapes, letters as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
