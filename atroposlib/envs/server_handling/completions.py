"""Engine answers as the types of the ``openai`` package, which environments know."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from atroposlib.envs.server_handling.generation import SampledTokens
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.errors import EngineUnavailable

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

T = TypeVar("T")


def load_openai_types() -> None:
    """Import the types now, so that the first answer does not hold up the event loop for half a second."""
    importlib.import_module("openai.types.chat")


def read_chat_completion(answer: Any) -> ChatCompletion:
    """The answer of a chat endpoint. What the engine added stays readable as attributes and in ``model_extra``.

    Raises:
        EngineUnavailable: the answer holds no choices; the message quotes what the engine said instead.
    """
    from openai.types.chat import ChatCompletion

    return _read(ChatCompletion, answer)


def read_completion(answer: Any) -> Completion:
    """The answer of a text completion endpoint; see ``read_chat_completion``."""
    from openai.types import Completion

    return _read(Completion, answer)


def chat_logprobs(tokens: TokenText, sampled: SampledTokens) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat: one entry for each sampled id, the end of the turn included.

    ``bytes`` is ``None`` for an id that is only a part of a character; other candidates are not known.
    """
    pieces = [tokens.decode([number]) for number in sampled.ids]
    return {
        "content": [
            {
                "token": piece,
                "logprob": logprob,
                "bytes": None if "\ufffd" in piece else list(piece.encode()),
                "top_logprobs": [],
            }
            for piece, logprob in zip(pieces, sampled.logprobs, strict=True)
        ]
    }


def in_portions(request: dict[str, Any], most: int | None) -> list[dict[str, Any]]:
    """Requests for at most ``most`` choices each, which together ask for the ``n`` of one; None: no limit.

    A seed is counted on, as engines do it for the choices of one request; the same one would give the same choices.
    """
    wanted, seed = request.get("n") or 1, request.get("seed")
    if most is None or wanted <= most:
        return [request]
    portions = []
    for start in range(0, wanted, most):
        portions.append({**request, "n": min(most, wanted - start)})
        if isinstance(seed, int):
            portions[-1]["seed"] = seed + start
    return portions


def merge_choices(parts: Sequence[Any]) -> Any:
    """One completion that holds the choices of all parts, numbered through, and the sum of their usage."""
    first, rest = parts[0], parts[1:]
    if not rest:
        return first
    first.choices = [choice for part in parts for choice in part.choices]
    for index, choice in enumerate(first.choices):
        choice.index = index
    usages = [part.usage for part in parts if part.usage is not None]
    if usages:
        first.usage = usages[0].model_copy(
            update={
                name: sum(getattr(usage, name) or 0 for usage in usages)
                for name in ("prompt_tokens", "completion_tokens", "total_tokens")
            }
        )
    return first


async def together(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all requests at once. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _read(kind: Any, answer: Any) -> Any:
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise EngineUnavailable(f"the engine answered without choices: {str(answer)[:500]}")
    try:
        return kind.model_validate(answer)
    except ValidationError:
        # engines add finish reasons and leave out fields; the openai package reads such answers unvalidated, too
        return kind.construct(**answer)
