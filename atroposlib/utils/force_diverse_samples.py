"""Completions that differ from the first token on."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import InferenceError

Messages = Sequence[Mapping[str, Any]]


async def generate_with_diverse_first_tokens(
    self: Any,
    messages: Messages,
    prefill: str = "",
    n: int = 8,
    max_tokens: int = 4096,
    temperature: float = 1.0,
    rng: random.Random | None = None,
) -> list[str]:
    """Return up to ``n`` completions of ``self.server``, each with another first token, drawn by their probability.

    Each text begins with its first token; ``prefill`` is not repeated in it. There are fewer than ``n`` where the
    engine names fewer alternatives (it names 20).

    Raises: InferenceError where the engine tells no alternatives of a token.
    """
    candidates = await _first_tokens(self.server, messages, prefill)
    tokens = _draw(candidates, n, temperature, rng or random.Random())

    async def finish(token: str) -> str:
        answer = await self.server.chat_completion(
            messages=[*messages, {"role": "assistant", "content": prefill + token}],
            n=1,
            max_tokens=max(1, max_tokens - 1),
            temperature=temperature,
        )
        return token + (answer.choices[0].message.content or "")

    return list(await asyncio.gather(*map(finish, tokens)))


async def _first_tokens(server: Any, messages: Messages, prefill: str) -> list[tuple[str, float]]:
    answer = await server.chat_completion(
        messages=[*messages, {"role": "assistant", "content": prefill}],
        n=1,
        max_tokens=1,
        temperature=0.0,
        logprobs=True,
        top_logprobs=20,
    )
    logprobs = answer.choices[0].logprobs
    if logprobs is None or not logprobs.content or not logprobs.content[0].top_logprobs:
        raise InferenceError("the engine tells no alternatives of a token; it must answer logprobs with top_logprobs")
    return [(each.token, each.logprob) for each in logprobs.content[0].top_logprobs]


def _draw(candidates: Sequence[tuple[str, float]], n: int, temperature: float, rng: random.Random) -> list[str]:
    """Draw different tokens in proportion to probability: the largest of log p / T plus Gumbel noise."""

    def key(candidate: tuple[str, float]) -> float:
        noise = -math.log(-math.log(rng.random() or 1e-300) or 1e-300)
        return candidate[1] / max(temperature, 1e-6) + noise

    return [token for token, _ in sorted(candidates, key=key, reverse=True)[:n]]
