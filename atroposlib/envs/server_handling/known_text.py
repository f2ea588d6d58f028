"""Whether a tokenizer is that of an engine's model: both read one text, and their ids have to mean the same.

An engine that is fed the ids of another tokenizer answers all the same, to something that nobody asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.server_handling.generation import EngineFacts
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.errors import ConfigError

KNOWN_TEXT = "The quick brown fox jumps over the lazy dog, and nobody there objects to it."
MOST_MARKS = 2
"""Ids that an engine may put around a text: the mark of its beginning, and that of its end."""
SHOWN_IDS = 8


def check_tokenizer(tokenizer: Any, engine_ids: Sequence[int], facts: EngineFacts, url: str) -> None:
    """Compare a tokenizer with the ids that an engine makes of ``KNOWN_TEXT``. One that reads no texts is passed over.

    Raises: ConfigError where the ids are another tokenizer's.
    """
    if not all(callable(getattr(tokenizer, name, None)) for name in ("encode", "decode")):
        return
    tokens = TokenText(tokenizer)
    own_ids = tokens.encode(KNOWN_TEXT)
    if _holds(engine_ids, own_ids) or _reads_alike(tokens, engine_ids):
        return
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    model = (
        facts.model_name if facts.model_root in ("", facts.model_name) else f"{facts.model_name}, {facts.model_root}"
    )
    raise ConfigError(
        f"--env.tokenizer_name {name!r} is not the tokenizer of the model at {url} ({model}): {KNOWN_TEXT!r} is "
        f"{_shown(engine_ids)} there and {_shown(own_ids)} here. Name the tokenizer of that model, or correct "
        "--openai.base_url"
    )


def _holds(engine_ids: Sequence[int], own_ids: Sequence[int]) -> bool:
    """Whether the engine's ids are the tokenizer's, between marks that it adds."""
    surplus = len(engine_ids) - len(own_ids)
    return 0 <= surplus <= MOST_MARKS and any(
        list(engine_ids[start : start + len(own_ids)]) == own_ids for start in range(surplus + 1)
    )


def _reads_alike(tokens: TokenText, engine_ids: Sequence[int]) -> bool:
    """Whether the tokenizer reads the engine's ids as the text: it may part a text elsewhere and be the right one."""
    try:
        read = tokens.decode(engine_ids, skip_special=True)
    except (ValueError, LookupError, TypeError, OverflowError):
        return False  # an id that it does not know
    return "".join(KNOWN_TEXT.split()) in "".join(read.split())


def _shown(ids: Sequence[int]) -> str:
    more = ", …" if len(ids) > SHOWN_IDS else ""
    return f"[{', '.join(map(str, ids[:SHOWN_IDS]))}{more}]"
