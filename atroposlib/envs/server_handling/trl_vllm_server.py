"""``trl vllm-serve``: stock vLLM today, and the server of its own (``POST /generate/``) that TRL had before."""

from __future__ import annotations

import asyncio
from typing import Any

from atroposlib.envs.server_handling.completions import read_chat_completion, read_completion
from atroposlib.envs.server_handling.generation import Generation, SampledTokens
from atroposlib.envs.server_handling.http_engine import HttpEngine
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ReasoningConfig
from atroposlib.errors import ConfigError, EngineRefused, NotTokenExact

__all__ = ["APIServerConfig", "ReasoningConfig", "TrlVllmServer"]

_KNOWN = ("n", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_tokens")
_DEFAULT_MAX_TOKENS = 16


class TrlVllmServer(HttpEngine):
    """TRL's server. The older one takes ids or text and answers in ids; text is read by ``config.tokenizer_name``."""

    has_own_dialect = True

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        self.tokenizer: Any = None

    async def _generate_in_own_dialect(self, prompt: Any, kwargs: dict[str, Any]) -> Generation:
        answer = await self._ask(prompt, kwargs)
        logprobs = answer.get("logprobs")
        if logprobs is None:
            raise NotTokenExact(
                f"{self._url} answers without logprobs; use TRL 0.23 or later (`trl vllm-serve`), or stock vLLM"
            )
        limit = kwargs.get("max_tokens") or _DEFAULT_MAX_TOKENS
        sampled = [
            SampledTokens(ids, [_first(each) for each in row], "length" if len(ids) >= limit else "stop")
            for ids, row in zip(answer["completion_ids"], logprobs, strict=True)
        ]
        return self._generation(prompt, (answer.get("prompt_ids") or [None])[0], sampled)

    async def _chat_completion_wrapper(self, **kwargs: Any) -> Any:
        try:
            return await super()._chat_completion_wrapper(**kwargs)
        except EngineRefused as refused:
            if refused.status not in (404, 405):
                raise
        tokenizer = await self._open_tokenizer()
        text = tokenizer.apply_chat_template(
            kwargs["messages"], tools=kwargs.get("tools"), tokenize=False, add_generation_prompt=True
        )
        return read_chat_completion(await self._text_answer(text, kwargs, chat=True))

    async def _completion_wrapper(self, **kwargs: Any) -> Any:
        try:
            return await super()._completion_wrapper(**kwargs)
        except EngineRefused as refused:
            if refused.status not in (404, 405):
                raise
        return read_completion(await self._text_answer(kwargs["prompt"], kwargs, chat=False))

    async def _text_answer(self, prompt: str, kwargs: dict[str, Any], chat: bool) -> dict[str, Any]:
        tokenizer = await self._open_tokenizer()
        answer = await self._ask(prompt, kwargs)
        choices = []
        for index, ids in enumerate(answer["completion_ids"]):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": index, "finish_reason": "stop", "logprobs": None, **said})
        kind = "chat.completion" if chat else "text_completion"
        return {"id": "trl", "object": kind, "created": 0, "model": self.config.model_name, "choices": choices}

    async def _ask(self, prompt: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        known = {name: kwargs[name] for name in _KNOWN if kwargs.get(name) is not None}
        body = {"prompts": [prompt], "logprobs": 0, **known, **(kwargs.get("extra_body") or {})}
        answer = await self._http.post(self._at("/generate/"), body, kwargs.get("timeout"))
        if not isinstance(answer, dict) or "completion_ids" not in answer:
            raise NotTokenExact(f"{self._url} does not answer as TRL's server does; {self.token_exact_hint}")
        return answer

    async def _open_tokenizer(self) -> Any:
        if self.tokenizer is None:
            name = self.config.tokenizer_name if self.config.tokenizer_name != "none" else self.config.model_name
            if name == "default":
                raise ConfigError("this TRL server answers in ids only; name its model: --openai.tokenizer_name")
            self.tokenizer = await asyncio.to_thread(_load_tokenizer, name)
        return self.tokenizer


def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def _first(logprob: Any) -> float | None:
    """Newer versions give a list of the likeliest for each id, the sampled one alone for ``logprobs: 0``."""
    return (logprob[0] if logprob else None) if isinstance(logprob, list) else logprob
