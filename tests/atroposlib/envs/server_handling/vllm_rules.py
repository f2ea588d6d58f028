"""What stock vLLM refuses, in its own words. ``vllm_recording.json`` holds the originals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NUMBERS = {"max_tokens": "integer", "n": "integer", "temperature": "number", "top_p": "number"}
_PARSED = {"integer": "int_parsing", "number": "float_parsing"}
_AS = {"integer": "an integer", "number": "a number"}


class Refused(Exception):
    """A refusal: ``status`` and the whole ``body``."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, kind: str = "BadRequestError"):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def check_model(body: dict[str, Any], served: Sequence[str], unlisted: Sequence[str] = ()) -> None:
    """Refuse a model that is not served."""
    name = body.get("model")
    if name and name not in served and name not in unlisted:
        words = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
        raise Refused(words, "model", status=404, kind="NotFoundError")


def check_parameters(body: dict[str, Any]) -> None:
    """Refuse numbers written as words, a temperature below zero, several answers where all would be the same."""
    for name, kind in _NUMBERS.items():
        if isinstance(body.get(name), str):
            said = f"Input should be a valid {kind}, unable to parse string as {_AS[kind]}"
            told = {"type": _PARSED[kind], "loc": f"body.{name}", "msg": said, "input": body[name]}
            raise Refused(f"1 validation error:\n  {told}", f"body.{name}", kind="Bad Request")
    temperature, n = body.get("temperature"), body.get("n")
    if temperature is not None and temperature < 0:
        raise _out_of_range("temperature", "temperature must be non-negative", float(temperature))
    if n is not None and n < 1:
        raise Refused(f"n must be at least 1, got {n}.")
    if temperature == 0 and n is not None and n > 1:
        raise Refused(f"n must be 1 when using greedy sampling, got {n}.")


def check_ids(prompt: Sequence[int], vocabulary: int) -> None:
    """Refuse ids that the model does not know."""
    for number in prompt:
        if number >= vocabulary:
            raise Refused(f"Token id {number} is out of vocabulary")


def room(prompt: Sequence[int], wanted: int | None, longest: int, *, as_text: bool) -> int:
    """How many ids an answer may have: what was ``wanted``, or what a prompt leaves of ``longest``, if it is less."""
    if wanted is not None and wanted > longest:
        raise Refused(
            f"max_tokens={wanted} cannot be greater than max_model_len={longest}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    if len(prompt) > longest:
        # a text is read no further than that it is too long
        told = longest + 1 if as_text else len(prompt)
        raise Refused(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains "
            f"{'at least ' if as_text else ''}{told} input tokens, which exceeds this limit even without any output "
            f"tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={told})",
            "input_tokens",
        )
    left = longest - len(prompt)
    left = left if wanted is None else min(wanted, left)
    if left < 1:
        raise _out_of_range("max_tokens", "max_tokens must be at least 1", left)
    return left


def _out_of_range(name: str, words: str, value: float) -> Refused:
    return Refused(f"{words}, got {value}. (parameter={name}, value={value})", name)
