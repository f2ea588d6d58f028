"""vLLM: the stock server, or the patched one that Atropos ships (``POST /generate``)."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.server_handling.generation import Generation, SampledTokens
from atroposlib.envs.server_handling.http_engine import HttpEngine
from atroposlib.envs.server_handling.resolve_configs import resolve_openai_configs
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ReasoningConfig
from atroposlib.errors import NotTokenExact

__all__ = ["APIServerConfig", "ReasoningConfig", "VLLMServer", "resolve_openai_configs"]


class VLLMServer(HttpEngine):
    """Stock vLLM; where it does not know completions from ids, the patched server's ``/generate``."""

    health_path = "/health"
    has_own_dialect = True

    async def _generate_in_own_dialect(self, prompt: Any, kwargs: dict[str, Any]) -> Generation:
        wrapped = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
        answer = await self._post("/generate", {**kwargs, "prompt": wrapped, "logprobs": 0})
        if not isinstance(answer, dict) or answer.get("logprobs") is None:
            raise NotTokenExact(f"{self._url} answers without the logprobs it sampled; {self.token_exact_hint}")
        reasons = answer.get("finish_reasons") or ["stop"] * len(answer["logprobs"])
        sampled = [_patched(positions, reason) for positions, reason in zip(answer["logprobs"], reasons, strict=True)]
        return self._generation(prompt, answer.get("prompt_token_ids"), sampled)


def _patched(positions: list[Any], finish_reason: str) -> SampledTokens:
    """Read ``[[{id: logprob}], …]``, one entry per sampled id."""
    entries = [position[0] if isinstance(position, list) else position for position in positions]
    pairs = [next(iter(entry.items())) for entry in entries]
    return SampledTokens([int(number) for number, _ in pairs], [logprob for _, logprob in pairs], finish_reason)
