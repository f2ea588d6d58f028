"""SGLang: ids over its own ``POST /generate``; chat and text as in OpenAI's API."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.server_handling.generation import Generation, SampledTokens
from atroposlib.envs.server_handling.http_engine import HttpEngine, policy_version, prompt_of
from atroposlib.envs.server_handling.resolve_configs import resolve_openai_configs
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ReasoningConfig
from atroposlib.errors import NotTokenExact

__all__ = ["APIServerConfig", "ReasoningConfig", "SGLangServer", "resolve_openai_configs"]

_RENAMED = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
_BESIDE_SAMPLING = ("timeout", "extra_body", "model")


class SGLangServer(HttpEngine):
    """A stock SGLang server."""

    health_path = "/health"

    async def _generate_once(self, **kwargs: Any) -> Generation:
        prompt = prompt_of(kwargs)
        answers = await self._generate(prompt, kwargs, {"return_logprob": True, "return_prompt_token_ids": True})
        echoed = answers[0]["meta_info"].get("prompt_token_ids") or answers[0].get("prompt_token_ids")
        return self._generation(prompt, echoed, [self._read(answer) for answer in answers])

    async def _ids_of(self, text: str) -> list[int]:
        scored: list[int] = (await self._get_logprobs_wrapper(prompt=text))["prompt_tokens"]
        return scored

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        prompt, top_k = prompt_of(kwargs), max(1, kwargs.pop("top_k", None) or 1)
        asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": top_k}
        (answer,) = await self._generate(prompt, {**kwargs, "max_tokens": 1, "temperature": 0.0}, asked)
        told = answer["meta_info"]
        ranked = [sorted(position or [], key=lambda each: -each[0])[:top_k] for position in told["input_top_logprobs"]]
        return {
            "prompt_tokens": [number for _, number, *_ in told["input_token_logprobs"]],
            "prompt_topk_token_ids": [[number for _, number, *_ in position] for position in ranked],
            "prompt_topk_logprobs": [[logprob for logprob, *_ in position] for position in ranked],
        }

    async def _generate(self, prompt: Any, kwargs: dict[str, Any], asked: dict[str, Any]) -> list[dict[str, Any]]:
        """One request; ``n`` answers. What is no sampling parameter of SGLang may stand in ``extra_body``."""
        sampling = {
            _RENAMED.get(name, name): value
            for name, value in kwargs.items()
            if value is not None and name not in _BESIDE_SAMPLING
        }
        body = {
            "text" if isinstance(prompt, str) else "input_ids": prompt,
            "sampling_params": sampling,
            **asked,
            **(kwargs.get("extra_body") or {}),
        }
        answer = await self._http.post(self._at("/generate"), body, kwargs.get("timeout"))
        answers = answer if isinstance(answer, list) else [answer]
        if not answers or not all(isinstance(each, dict) and each.get("meta_info") for each in answers):
            raise NotTokenExact(f"{self._url} does not answer as SGLang does; {self.token_exact_hint}")
        return answers

    def _read(self, answer: dict[str, Any]) -> SampledTokens:
        told = answer["meta_info"]
        triples = told.get("output_token_logprobs")
        if triples is None:
            raise NotTokenExact(f"{self._url} answers without the logprobs it sampled; {self.token_exact_hint}")
        reason = told.get("finish_reason") or {}
        return SampledTokens(
            [number for _, number, *_ in triples],
            [logprob for logprob, *_ in triples],
            reason.get("type", "") if isinstance(reason, dict) else str(reason),
            policy_version(told, answer),
        )
