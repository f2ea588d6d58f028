"""A real tokenizer of transformers, made of nothing: bytes as tokens, and a ChatML template."""

from __future__ import annotations

from typing import Any

_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def chatml_tokenizer(template: str = _TEMPLATE) -> Any:
    """One token per byte, besides the special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


class OneAnswerForm:
    """A tokenizer whose ``apply_chat_template`` answers in a form of another version of transformers."""

    def __init__(self, tokenizer: Any, form: str) -> None:
        self._tokenizer = tokenizer
        self._form = form

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, chat: Any, **options: Any) -> Any:
        import numpy as np

        ids = self._tokenizer.apply_chat_template(chat, **{**options, "return_dict": False})
        forms = {
            "list": ids,
            "dict": {"input_ids": ids, "attention_mask": [1] * len(ids)},
            "array": np.array(ids),
            "batch": [ids],
        }
        return forms[self._form]
