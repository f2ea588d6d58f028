"""Load a tokenizer when it is needed, and say what to do where it is not found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.envs.hub import hub_answers
from atroposlib.errors import ConfigError


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or of a name on the Hugging Face Hub.

    Its ``apply_chat_template`` answers a plain list of ids unless asked otherwise (transformers 5 would answer a
    dict). Raises: ConfigError where there is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=_is_out_of_reach(name))
    except (OSError, ValueError, ImportError) as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"no tokenizer {name!r}: set --env.tokenizer_name to a folder or to a name on the Hub ({cause[0]})"
        ) from error
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, return_dict=False)
    return tokenizer


def _is_out_of_reach(name: str) -> bool:
    """Whether it can only be here: where the hub does not answer, its client tries for most of a minute."""
    from huggingface_hub import constants

    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).is_dir():
        return True
    return not constants.HF_HUB_OFFLINE and not hub_answers(constants.ENDPOINT)
