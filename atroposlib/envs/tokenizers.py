"""Load a tokenizer when it is needed, and say what to do where it is not found."""

from __future__ import annotations

from functools import partial
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.hub import is_only_here


def load_tokenizer(name: str, flag: str = "--env.tokenizer_name") -> Any:
    """The tokenizer of a folder or of a name on the Hugging Face Hub.

    Its ``apply_chat_template`` answers a plain list of ids unless asked otherwise (transformers 5 would answer a
    dict). Raises: ConfigError where there is none, which names ``flag``.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=is_only_here(name))
    except (OSError, ValueError, ImportError) as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"no tokenizer {name!r}: set {flag} to a folder or to a name on the Hub ({cause[0]})"
        ) from error
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, return_dict=False)
    return tokenizer
