"""Turn a finished conversation into tokens and masks by a tokenizer's chat template.

For data that no engine sampled here: fine-tuning sets, written demonstrations, engines that tell no token ids. Rollouts
that are trained on by reinforcement take the engine's own ids (``server.managed_server``): what a template renders is
not always what a model said.

Masks repeat the token id where a token is trained on, and are -100 elsewhere. Works alike with tokenizers of
transformers 4 and 5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from atroposlib.wire import IGNORED_MASK

logger = logging.getLogger(__name__)

UNMASKED_ROLES: Final = ("assistant", "agent")
"""Roles whose words the model is trained to say."""

Chat: TypeAlias = Sequence[Mapping[str, Any]]
_ANY_QUESTION: Final[Chat] = [{"role": "user", "content": "0"}]


def tokenize_for_trainer(
    tokenizer: Any,
    chat: Chat,
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """Return ``tokens`` and ``masks`` of a conversation, and ``messages`` if they are to be included.

    The last message is trained on; with ``train_on_all_assistant_turns``, every message of an assistant or agent that
    stands in the rendered conversation as it was said. A turn begins where the conversation and its beginning with a
    generation prompt part ways. With the ``finish_reason`` "length" the model was cut off: the end-of-turn token that
    the template closes the last message with was never said, so it is left out, with what follows it.
    """
    tokens = _template_ids(tokenizer, chat)
    masks = [IGNORED_MASK] * len(tokens)
    for start, end in _trained_spans(tokenizer, chat, tokens, train_on_all_assistant_turns):
        masks[start:end] = tokens[start:end]
    if finish_reason == "length":
        length = _length_without_end_of_turn(tokenizer, tokens)
        tokens, masks = tokens[:length], masks[:length]
    result: dict[str, Any] = {"tokens": tokens, "masks": masks}
    return {**result, "messages": chat} if include_messages else result


def tokenize_for_trainer_dpo(
    tokenizer: Any, data: Mapping[str, Any], max_length: int | None = None, **_: Any
) -> dict[str, Any]:
    """Tokenize a preference pair: ``data`` holds ``prompt``, ``chosen`` and ``rejected``.

    Each is a text or, for the prompt, a list of messages. Texts become a user's and an assistant's message where the
    tokenizer has a chat template, and are joined as they stand (the answer closed by the end-of-text token) where it
    has none. The answer holds the three as given and, for ``chosen`` and ``rejected``, ``…_input_ids``,
    ``…_attention_mask`` and ``…_labels`` (-100 on the prompt), unpadded and cut at ``max_length``; for ``prompt`` the
    first two.
    """
    result: dict[str, Any] = {key: data[key] for key in ("prompt", "chosen", "rejected")}
    prompt_ids: list[int] = []
    for key in ("chosen", "rejected"):
        prompt_ids, ids = _pair_ids(tokenizer, data["prompt"], data[key])
        if max_length is not None and len(ids) > max_length:
            logger.warning("the %s answer is cut from %d to %d tokens", key, len(ids), max_length)
            ids = ids[:max_length]
        labels = [IGNORED_MASK] * min(len(prompt_ids), len(ids)) + ids[len(prompt_ids) :]
        result |= {f"{key}_input_ids": ids, f"{key}_attention_mask": [1] * len(ids), f"{key}_labels": labels}
    return {**result, "prompt_input_ids": prompt_ids, "prompt_attention_mask": [1] * len(prompt_ids)}


def _template_ids(tokenizer: Any, chat: Chat, **options: Any) -> list[int]:
    """Render and encode. Tokenizers answer a list, a mapping with ``input_ids``, an array, or a batch of one."""
    answer = tokenizer.apply_chat_template(list(chat), tokenize=True, **options)
    ids = answer["input_ids"] if isinstance(answer, Mapping) else getattr(answer, "input_ids", answer)
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(ids[0]) if ids and isinstance(ids[0], list) else ids


def _trained_spans(tokenizer: Any, chat: Chat, tokens: Sequence[int], all_turns: bool) -> list[tuple[int, int]]:
    """Where trained turns begin and end in ``tokens``."""
    last = len(chat) - 1
    turns = [i for i, message in enumerate(chat) if message["role"] in UNMASKED_ROLES] if all_turns else [last]
    spans = []
    for turn in turns:
        end = len(tokens) if turn == last else _common_length(tokens, _template_ids(tokenizer, chat[: turn + 1]))
        if turn == 0:
            start = _end_of_opening(tokenizer, tokens[:end])
        else:
            start = _common_length(tokens, _template_ids(tokenizer, chat[:turn], add_generation_prompt=True))
        spans.append((start, end))
    return spans


def _end_of_opening(tokenizer: Any, tokens: Sequence[int]) -> int:
    """Where the first message of a conversation begins to speak, if it is an answer.

    Nothing comes before it that could be rendered, so what opens an answer is taken from another conversation.
    """
    asked = _template_ids(tokenizer, _ANY_QUESTION)
    opened = _template_ids(tokenizer, _ANY_QUESTION, add_generation_prompt=True)
    opening = opened[_common_length(asked, opened) :]
    matches = [_common_length(tokens[i : i + len(opening)], opening) for i in range(len(tokens))]
    longest = max(matches, default=0)
    return matches.index(longest) + longest if longest else _common_length(tokens, asked)


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def _length_without_end_of_turn(tokenizer: Any, tokens: Sequence[int]) -> int:
    """The length up to the last special token, if nothing but blanks follows it."""
    special = {*getattr(tokenizer, "all_special_ids", ()), getattr(tokenizer, "eos_token_id", None)}
    length = len(tokens)
    while length and tokens[length - 1] not in special:
        length -= 1
        if tokenizer.decode(list(tokens[length:])).strip():
            return len(tokens)
    return length - 1 if length else len(tokens)


def _pair_ids(tokenizer: Any, prompt: str | Chat, answer: str | Chat) -> tuple[list[int], list[int]]:
    """Ids of the prompt alone, and of the prompt with the answer, of which the first are the beginning."""
    if getattr(tokenizer, "chat_template", None):
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        said = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else list(answer)
        ids = _template_ids(tokenizer, [*asked, *said])
        prompt_ids = _template_ids(tokenizer, asked, add_generation_prompt=True)
        return ids[: _common_length(ids, prompt_ids)], ids
    prompt_ids = list(tokenizer.encode(prompt))
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return prompt_ids, prompt_ids + list(tokenizer.encode(answer, add_special_tokens=False)) + end
