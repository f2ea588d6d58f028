"""``trl vllm-serve``: stock vLLM today, and the server of its own (``POST /generate/``) that TRL had before.

That server passes over fields that it does not know, without a word. So nothing else is sent to it: sampling parameters
that it has no field for stand in its ``generation_kwargs``, and what it has no place for is refused by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from atroposlib.envs.server_handling.capture_fields import ONLY_FOR_OPENAI
from atroposlib.envs.server_handling.completions import read_chat_completion, read_completion
from atroposlib.envs.server_handling.generation import Generation, SampledTokens
from atroposlib.envs.server_handling.http_engine import HttpEngine
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ReasoningConfig
from atroposlib.errors import ConfigError, EngineRefused, NotTokenExact

__all__ = ["APIServerConfig", "ReasoningConfig", "TrlVllmServer"]

logger = logging.getLogger(__name__)

_FIELDS = frozenset(
    ("n", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_tokens", "structured_outputs_regex")
)
"""Sampling parameters that are fields of the request."""
_IN_GENERATION_KWARGS = frozenset(
    (
        *("allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output"),
        *("min_tokens", "presence_penalty", "seed", "stop", "stop_token_ids"),
    )
)
"""Sampling parameters of vLLM that are not; ``logit_bias`` would lose the type of its keys in JSON."""
_NOT_SENT = frozenset(("model", "timeout", *ONLY_FOR_OPENAI))
"""Arguments that do not change the answer."""
_ASK_FOR_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "stream": (False,),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
}
_DEFAULT_MAX_TOKENS = 16


class TrlVllmServer(HttpEngine):
    """TRL's server. The older one takes ids or text and answers in ids; text is read by ``config.tokenizer_name``."""

    has_own_dialect = True

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        self.tokenizer: Any = None
        self._warned = False

    async def _generate_in_own_dialect(self, prompt: Any, kwargs: dict[str, Any]) -> Generation:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("logprobs", "return_token_ids")}
        body = self._body(prompt, kwargs)
        answer = await self._ask(body, kwargs)
        logprobs = answer.get("logprobs")
        if logprobs is None:
            raise NotTokenExact(
                f"{self._url} answers without logprobs; use TRL 0.23 or later (`trl vllm-serve`), or stock vLLM"
            )
        sampled = [
            SampledTokens(ids, [_first(each) for each in row], _reason(ids, body))
            for ids, row in zip(answer["completion_ids"], logprobs, strict=True)
        ]
        return self._generation(prompt, (answer.get("prompt_ids") or [None])[0], sampled)

    async def _chat_completion_wrapper(self, **kwargs: Any) -> Any:
        try:
            return await super()._chat_completion_wrapper(**kwargs)
        except EngineRefused as refused:
            if refused.status not in (404, 405):
                raise
        reasoning = self.reasoning_config.build_extra_body(self._url) if self.reasoning_config else None
        asked = {**kwargs, **(reasoning or {}), **(kwargs.get("extra_body") or {}), "extra_body": None}
        messages, tools = asked.pop("messages"), asked.pop("tools", None)
        variables = asked.pop("chat_template_kwargs", None) or {}
        tools = None if asked.get("tool_choice") == "none" else tools
        self._body("", asked)  # what is refused is refused before anything is loaded
        tokenizer = await self._open_tokenizer()
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **variables
        )
        return read_chat_completion(await self._text_answer(text, asked, chat=True))

    async def _completion_wrapper(self, **kwargs: Any) -> Any:
        try:
            return await super()._completion_wrapper(**kwargs)
        except EngineRefused as refused:
            if refused.status not in (404, 405):
                raise
        return read_completion(await self._text_answer(kwargs.pop("prompt"), kwargs, chat=False))

    async def _text_answer(self, prompt: str, kwargs: dict[str, Any], chat: bool) -> dict[str, Any]:
        body = self._body(prompt, kwargs)
        tokenizer = await self._open_tokenizer()
        answer = await self._ask(body, kwargs)
        choices = []
        for index, ids in enumerate(answer["completion_ids"]):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": index, "finish_reason": _reason(ids, body), "logprobs": None, **said})
        kind = "chat.completion" if chat else "text_completion"
        return {"id": "trl", "object": kind, "created": 0, "model": self.config.model_name, "choices": choices}

    def _body(self, prompt: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The request of TRL's own. Raises: ConfigError where an argument has no place in it."""
        asked = {**kwargs, **(kwargs.get("extra_body") or {}), "extra_body": None}
        limit = asked.pop("max_completion_tokens", None)
        sampling = dict(asked.pop("generation_kwargs", None) or {})
        body = {"prompts": [prompt], "logprobs": 0, **({} if limit is None else {"max_tokens": limit})}
        for name, value in asked.items():
            if value is None or name in _NOT_SENT or _asks_for_nothing(name, value):
                continue
            if name not in _FIELDS | _IN_GENERATION_KWARGS:
                raise ConfigError(
                    f"{name}: {self._url} speaks TRL's older /generate/, which has no place for it; leave it out, or "
                    "serve the model by stock vLLM, as newer versions of TRL do"
                )
            (body if name in _FIELDS else sampling)[name] = value
        return body | ({"generation_kwargs": sampling} if sampling else {})

    async def _ask(self, body: dict[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._http.post(self._at("/generate/"), body, kwargs.get("timeout"))
        if not isinstance(answer, dict) or "completion_ids" not in answer:
            raise NotTokenExact(f"{self._url} does not answer as TRL's server does; {self.token_exact_hint}")
        if "generation_kwargs" in body and "logprobs" not in answer and not self._warned:
            self._warned = True
            names = ", ".join(body["generation_kwargs"])
            logger.warning("%s is an old TRL (before 0.23) and may pass over %s; use a newer one", self._url, names)
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


def _asks_for_nothing(name: str, value: Any) -> bool:
    return any(type(value) is type(nothing) and value == nothing for nothing in _ASK_FOR_NOTHING.get(name, ()))


def _reason(ids: list[int], body: Mapping[str, Any]) -> str:
    """Why an answer ended, which this server does not tell."""
    return "length" if len(ids) >= body.get("max_tokens", _DEFAULT_MAX_TOKENS) else "stop"


def _first(logprob: Any) -> float | None:
    """Newer versions give a list of the likeliest for each id, the sampled one alone for ``logprobs: 0``."""
    return (logprob[0] if logprob else None) if isinstance(logprob, list) else logprob
