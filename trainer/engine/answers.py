"""What the engine's routes answer, in vLLM's shapes, as plain JSON values."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from trainer.engine.chat import JSON, Words
from trainer.engine.protocol import ChatRequest, CompletionRequest
from trainer.engine.sequence import Completion
from trainer.errors import EngineError


@dataclass(frozen=True)
class Answered:
    """One choice of an answer: the prompt it continues and what came of it."""

    prompt: list[int]
    completion: Completion


def completion_answer(words: Words, request: CompletionRequest, model: str, answered: list[Answered]) -> JSON:
    choices = [_text_choice(words, request, index, one) for index, one in enumerate(answered)]
    prompts = sum(len(one.prompt) for one in answered[:: request.n])
    return _envelope("cmpl", "text_completion", model, choices, prompts, answered)


def chat_answer(words: Words, request: ChatRequest, model: str, answered: list[Answered]) -> JSON:
    choices = [_chat_choice(words, request, index, one) for index, one in enumerate(answered)]
    prompt = answered[0].prompt
    answer = _envelope("chatcmpl", "chat.completion", model, choices, len(prompt), answered)
    if request.return_token_ids:
        answer["prompt_token_ids"] = prompt
    answer["prompt_logprobs"] = _prompt_logprobs(words, answered[0].completion)
    return answer


def error_answer(error: EngineError) -> JSON:
    body = {"message": str(error), "type": error.kind, "param": error.param, "code": error.status}
    return {"error": body}


def _envelope(
    prefix: str, kind: str, model: str, choices: list[JSON], prompt_tokens: int, answered: list[Answered]
) -> JSON:
    sampled = sum(len(one.completion.token_ids) for one in answered)
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }


def _text_choice(words: Words, request: CompletionRequest, index: int, one: Answered) -> JSON:
    completion = one.completion
    choice = _choice(index, completion)
    choice["text"] = _text(words, completion, request.skip_special_tokens, request.include_stop_str_in_output)
    choice["logprobs"] = None if request.logprobs is None else _text_logprobs(words, request, completion)
    choice["prompt_logprobs"] = _prompt_logprobs(words, completion)
    if request.return_token_ids:
        choice["prompt_token_ids"], choice["token_ids"] = one.prompt, completion.token_ids
    return choice


def _chat_choice(words: Words, request: ChatRequest, index: int, one: Answered) -> JSON:
    completion = one.completion
    choice = _choice(index, completion)
    skip = request.skip_special_tokens and not request.parsed_tools
    text = _text(words, completion, skip, request.include_stop_str_in_output)
    message = words.assistant_message(text, request.parsed_tools)
    choice["message"] = message.body
    if message.calls_tools and completion.finish_reason == "stop":
        choice["finish_reason"] = "tool_calls"
    choice["logprobs"] = {"content": _chat_logprobs(words, request, completion)} if request.logprobs else None
    if request.return_token_ids:
        choice["token_ids"] = completion.token_ids
    return choice


def _choice(index: int, completion: Completion) -> JSON:
    spans = [{"version": span.version, "start": span.start, "end": span.end} for span in completion.versions]
    return {
        "index": index,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "weight_versions": spans,
    }


def _text(words: Words, completion: Completion, skip_special_tokens: bool, keep_stop: bool) -> str:
    """The text of a completion without what ended it, unless it was asked for."""
    if completion.text is not None:
        return completion.text
    ended_by_token = completion.finish_reason == "stop" and not keep_stop
    return words.decode(completion.token_ids[:-1] if ended_by_token else completion.token_ids, skip_special_tokens)


def _text_logprobs(words: Words, request: CompletionRequest, completion: Completion) -> JSON:
    name = _token_name(words, request)
    tokens = [name(token_id) for token_id in completion.token_ids]
    offsets, end = [], 0
    for token in tokens:
        offsets.append(end)
        end += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": completion.logprobs,
        "tokens": tokens,
        "top_logprobs": [
            {name(token_id): logprob for token_id, logprob in alternatives.items()}
            for alternatives in _alternatives(completion)
        ],
    }


def _chat_logprobs(words: Words, request: ChatRequest, completion: Completion) -> list[JSON]:
    name = _token_name(words, request)

    def entry(token_id: int, logprob: float) -> JSON:
        token = name(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    content = []
    steps = zip(completion.token_ids, completion.logprobs, _alternatives(completion), strict=True)
    for token_id, logprob, alternatives in steps:
        top = [entry(*one) for one in alternatives.items()][: request.top_logprobs or 0]
        content.append({**entry(token_id, logprob), "top_logprobs": top})
    return content


def _alternatives(completion: Completion) -> list[dict[int, float]]:
    """At each token the likeliest ones, likeliest first, and the sampled one in any case."""
    sampled = [{token: logprob} for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True)]
    if completion.top_logprobs is None:
        return sampled
    return [{**top, **one} for top, one in zip(completion.top_logprobs, sampled, strict=True)]


def _prompt_logprobs(words: Words, completion: Completion) -> list[dict[str, JSON] | None] | None:
    if completion.prompt_logprobs is None:
        return None
    positions: list[dict[str, JSON] | None] = []
    for alternatives in completion.prompt_logprobs:
        if alternatives is None:
            positions.append(None)
            continue
        positions.append(
            {
                str(token_id): {"logprob": logprob, "decoded_token": words.token_text(token_id)}
                for token_id, logprob in alternatives.items()
            }
        )
    return positions


def _token_name(words: Words, request: CompletionRequest | ChatRequest) -> Any:
    if request.return_tokens_as_token_ids:
        return "token_id:{}".format
    return words.token_text
