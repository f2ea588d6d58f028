"""A tokenizer that needs no files: the bytes of UTF-8, and ChatML's marks. For tests, examples and dry runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

CHATML_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\nTo call one, answer <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""

SPECIAL_TOKENS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}


class ByteTokenizer:
    """One id per byte of UTF-8 (0-255) and three special ids; with the methods of a Hugging Face tokenizer."""

    eos_token = "<|im_end|>"
    eos_token_id = SPECIAL_TOKENS["<|im_end|>"]
    pad_token = "<|endoftext|>"
    pad_token_id = SPECIAL_TOKENS["<|endoftext|>"]
    bos_token = None
    bos_token_id = None
    name_or_path = "bytes"
    is_fast = False

    def __init__(self, chat_template: str = CHATML_TEMPLATE) -> None:
        self.chat_template = chat_template
        self._texts = {number: text for text, number in SPECIAL_TOKENS.items()}
        self._specials = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")

    def __len__(self) -> int:
        return 256 + len(SPECIAL_TOKENS)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self)

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens."""
        return list(SPECIAL_TOKENS.values())

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of the special tokens."""
        return list(SPECIAL_TOKENS)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written in it become their ids. Nothing is ever added."""
        ids: list[int] = []
        for part in self._specials.split(text):
            ids.extend([SPECIAL_TOKENS[part]] if part in SPECIAL_TOKENS else part.encode("utf-8", "surrogatepass"))
        return ids

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """Text of ids; bytes that are no UTF-8 are replaced."""
        parts, run = [], bytearray()
        for number in [token_ids] if isinstance(token_ids, int) else token_ids:
            if number in self._texts:
                parts += [run.decode("utf-8", "replace"), "" if skip_special_tokens else self._texts[number]]
                run = bytearray()
            else:
                run.append(number)
        return "".join([*parts, run.decode("utf-8", "replace")])

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """``input_ids`` and ``attention_mask`` of one text."""
        ids = self.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Id of a special token or a single byte's character, ``None`` for anything else; lists likewise."""
        if isinstance(tokens, str):
            ids = self.encode(tokens)
            return ids[0] if len(ids) == 1 else None
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """Render a chat and, unless ``tokenize`` is false, encode it to a list of ids (or ``{"input_ids": …}``)."""
        text = _compile(variables.pop("chat_template", None) or self.chat_template).render(
            messages=list(conversation), tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )
        if continue_final_message:
            final = (conversation[-1].get("content") or "").rstrip()
            text = text[: text.rindex(final) + len(final)]
        if not tokenize:
            return text
        ids = self.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids


@lru_cache(maxsize=32)
def _compile(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template)
