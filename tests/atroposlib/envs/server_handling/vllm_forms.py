"""The forms that stock vLLM's answers have, with the stub's values in them. ``vllm_recording.json`` holds originals."""

from __future__ import annotations

import itertools
from typing import Any


def logprob(position: int, token: int) -> float:
    """The stub's logprob of a sampled id."""
    return -((position + token) % 7 + 1) / 8


def ranked(position: int, token: int, count: int) -> list[tuple[int, float]]:
    """An id and other ones below it, ``count`` in all, at least one: (id, logprob)."""
    first = logprob(position, token)
    return [((token + step) % 256 if step else token, first - step) for step in range(max(count, 1))]


def text_logprobs(tokenizer: Any, prompt: list[int], ids: list[int], count: int) -> dict[str, Any]:
    """``choices[].logprobs`` of a text; ``prompt`` is empty where it is not echoed."""
    given = [ranked(position, token, count) for position, token in enumerate(prompt)]
    sampled = [ranked(position, token, count) for position, token in enumerate(ids)]
    rows = [None if at == 0 and prompt else row for at, row in enumerate([*given, *sampled])]
    tokens = [tokenizer.decode([number]) for number in [*prompt, *ids]]
    return {
        "text_offset": [0, *itertools.accumulate(map(len, tokens))][: len(tokens)],
        "token_logprobs": [row and row[0][1] for row in rows],
        "tokens": tokens,
        "top_logprobs": [row and {tokenizer.decode([number]): value for number, value in row} for row in rows],
    }


def prompt_logprobs(tokenizer: Any, prompt: list[int], count: int) -> list[dict[str, Any] | None]:
    """``choices[].prompt_logprobs``: nothing of the first id, of each other the likeliest ids and itself."""
    rows = [ranked(position, token, count) for position, token in enumerate(prompt)]
    return [
        {
            str(number): {"logprob": value, "rank": rank, "decoded_token": tokenizer.decode([number])}
            for rank, (number, value) in enumerate(row, start=1)
        }
        if at
        else None
        for at, row in enumerate(rows)
    ]


def chat_logprobs(tokenizer: Any, ids: list[int], count: int) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat."""
    content = []
    for position, token in enumerate(ids):
        row = [(tokenizer.decode([number]), value) for number, value in ranked(position, token, count)]
        spelled = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in row]
        content.append({**spelled[0], "top_logprobs": spelled[:count]})
    return {"content": content}


def chat_message(text: str, call: dict[str, Any] | None) -> dict[str, Any]:
    """``choices[].message``; with a call there is no text. The call: name, and arguments as JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": text if call is None else None, "reasoning": None}
    message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    if call is not None:
        message["tool_calls"] = [{"id": "chatcmpl-tool-0", "type": "function", "function": call}]
    return message


def model_card(name: str, max_model_len: int) -> dict[str, Any]:
    """One entry of ``/v1/models``."""
    allowed = {"create_engine": False, "sampling": True, "logprobs": True, "search_indices": False, "view": True}
    permission = {
        "id": "modelperm-0",
        "object": "model_permission",
        "created": 0,
        "organization": "*",
        "group": None,
        **{f"allow_{what}": given for what, given in allowed.items()},
        "allow_fine_tuning": False,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def envelope(kind: str, model: str, choices: list[dict[str, Any]], consumed: int, sampled: int) -> dict[str, Any]:
    """A whole answer around its choices; ``consumed`` and ``sampled`` count ids, of all choices together."""
    usage = {"prompt_tokens": consumed, "total_tokens": consumed + sampled, "completion_tokens": sampled}
    details = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
    beside = dict.fromkeys(("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"))
    return {
        "id": "stub-1",
        "object": kind,
        "created": 1,
        "model": model,
        "choices": choices,
        "usage": usage | details,
        "system_fingerprint": "stub",
        **beside,
    }
