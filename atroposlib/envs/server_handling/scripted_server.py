"""An engine in this process that plays a script: the fake for tests, examples and dry runs."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.completions import read_chat_completion, read_completion
from atroposlib.envs.server_handling.generation import EngineFacts, Generation, SampledTokens, TokensAndLogprobs
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig
from atroposlib.errors import EngineRefused, NotTokenExact

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

SCRIPTED_LOGPROB = -0.25


@dataclass(frozen=True)
class ScriptedRequest:
    """One request as the engine saw it. ``text`` is the prompt: the last message, or the whole text or ids."""

    kind: Literal["chat", "completion", "tokens"]
    text: str
    arguments: Mapping[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat; empty for other kinds."""
        return list(self.arguments.get("messages") or [])

    @property
    def input_ids(self) -> list[int]:
        """The prompt in ids; empty for other kinds."""
        return list(self.arguments.get("input_ids") or [])


Reply = str | Mapping[str, Any] | BaseException
Script = Sequence["Reply | Callable[[ScriptedRequest], Reply]"] | Callable[[ScriptedRequest], Reply]


class ScriptedServer(APIServer):
    """Answers each choice of each request with the next reply of ``replies``, at chat, text and token level.

    A reply is
      - a string: the content;
      - a dict: ``content``, ``reasoning_content``, ``tool_calls`` (``[{"name", "arguments"}]`` or OpenAI's shape),
        ``finish_reason``, and for the token level ``token_ids``, ``logprobs``, ``policy_version``;
      - an exception, which is raised;
      - a function of the request (``ScriptedRequest``) that returns one of these.

    ``replies`` may be one such function for all requests, which suits concurrent ones. When the list is used up,
    ``default`` answers; without one the request is refused. At the token level a reply is encoded by ``tokenizer``
    (bytes, unless given), tool calls written as ``<tool_call>`` blocks, ended by the end-of-turn id, and cut at
    ``max_tokens``. Every request is kept in ``requests``.
    """

    def __init__(
        self,
        replies: Script = (),
        *,
        default: Reply | None = None,
        tokenizer: Any = None,
        config: APIServerConfig | None = None,
        token_exact: bool = True,
        max_model_len: int | None = None,
        delay_s: float = 0.0,
    ) -> None:
        super().__init__(config or APIServerConfig(model_name="scripted"))
        self.tokenizer = tokenizer or ByteTokenizer()
        self.requests: list[ScriptedRequest] = []
        self._replies: Iterator[Any] = itertools.repeat(replies) if callable(replies) else iter(replies)
        self._default = default
        self._token_exact = token_exact
        self._max_model_len = max_model_len
        self._delay_s = delay_s
        self._call_ids = itertools.count(1)

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        """Nothing to ask: the engine is always there."""

    async def probe(self) -> EngineFacts:
        """Token-exact as told at the start; no reply is used up."""
        return EngineFacts(
            token_exact=self._token_exact,
            reason="" if self._token_exact else "the script says so",
            model_name=self.config.model_name,
            max_model_len=self._max_model_len,
            engine="scripted",
        )

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        messages = kwargs.get("messages") or []
        replies = await self._take("chat", str(messages[-1].get("content") or "") if messages else "", kwargs)
        choices = [self._chat_choice(index, reply) for index, reply in enumerate(replies)]
        prompt = "\n".join(str(message.get("content") or "") for message in messages)
        return read_chat_completion(self._answer("chat.completion", choices, prompt, replies))

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        prompt = kwargs.get("prompt") or ""
        prompt = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        replies = await self._take("completion", prompt, kwargs)
        choices = [
            {"index": i, "text": _written(r), "finish_reason": r.get("finish_reason") or "stop", "logprobs": None}
            for i, r in enumerate(replies)
        ]
        return read_completion(self._answer("text_completion", choices, prompt, replies))

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> TokensAndLogprobs:
        return (await self._generate_wrapper(**kwargs)).as_lists()

    async def _generate_wrapper(self, **kwargs: Any) -> Generation:
        if not self._token_exact:
            raise NotTokenExact("this scripted engine gives no token ids")
        if kwargs.get("input_ids") is None:
            kwargs["input_ids"] = self.tokenizer.encode(kwargs.pop("prompt"))
        prompt_ids = list(kwargs["input_ids"])
        replies = await self._take("tokens", self.tokenizer.decode(prompt_ids), kwargs)
        return Generation(prompt_ids, tuple(self._sample(reply, kwargs.get("max_tokens")) for reply in replies))

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = kwargs.get("input_ids")
        ids = self.tokenizer.encode(kwargs["prompt"]) if ids is None else list(ids)
        top_k = max(1, kwargs.get("top_k") or 1)
        return {
            "prompt_tokens": ids,
            "prompt_topk_token_ids": [[number] * top_k for number in ids],
            "prompt_topk_logprobs": [[SCRIPTED_LOGPROB] * top_k for _ in ids],
        }

    async def _take(self, kind: Any, text: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        request = ScriptedRequest(kind, text, arguments)
        self.requests.append(request)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return [self._next(request) for _ in range(arguments.get("n") or 1)]

    def _next(self, request: ScriptedRequest) -> dict[str, Any]:
        reply = next(self._replies, self._default)
        if callable(reply):
            reply = reply(request)
        if isinstance(reply, BaseException):
            raise reply
        if reply is None:
            raise EngineRefused(
                f"the script has no reply left for request {len(self.requests)}: {request.text[-200:]!r}"
            )
        return {"content": reply} if isinstance(reply, str) else dict(reply)

    def _sample(self, reply: dict[str, Any], max_tokens: int | None) -> SampledTokens:
        ids, reason = reply.get("token_ids"), reply.get("finish_reason")
        if ids is None:
            ids = self.tokenizer.encode(_written(reply), add_special_tokens=False)
            ids += [self.tokenizer.eos_token_id] * (reason in (None, "stop", "tool_calls"))
        if max_tokens is not None and len(ids) > max_tokens:
            ids, reason = ids[:max_tokens], "length"
        logprobs = list(reply.get("logprobs") or [SCRIPTED_LOGPROB] * len(ids))[: len(ids)]
        reason = "stop" if reason in (None, "tool_calls") else reason
        return SampledTokens(list(ids), logprobs, reason, reply.get("policy_version"))

    def _chat_choice(self, index: int, reply: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.get("content")}
        if reply.get("reasoning_content") is not None:
            message["reasoning_content"] = reply["reasoning_content"]
        calls = [self._tool_call(call) for call in reply.get("tool_calls") or []]
        if calls:
            message["tool_calls"] = calls
        reason = reply.get("finish_reason") or ("tool_calls" if calls else "stop")
        return {"index": index, "message": message, "finish_reason": reason, "logprobs": None}

    def _tool_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = {"name": _function(call)["name"], "arguments": _arguments(call)}
        return {"id": call.get("id") or f"call_{next(self._call_ids)}", "type": "function", "function": function}

    def _answer(self, kind: str, choices: list[Any], prompt: str, replies: list[dict[str, Any]]) -> dict[str, Any]:
        consumed = len(self.tokenizer.encode(prompt))
        sampled = sum(len(self.tokenizer.encode(_written(reply))) for reply in replies)
        usage = {"prompt_tokens": consumed, "completion_tokens": sampled, "total_tokens": consumed + sampled}
        name, number = self.config.model_name, f"scripted-{len(self.requests)}"
        return {"id": number, "object": kind, "created": 0, "model": name, "choices": choices, "usage": usage}


def _written(reply: Mapping[str, Any]) -> str:
    """A reply as a model would write it: thoughts, content, then its calls."""
    thoughts = reply.get("reasoning_content")
    text = f"<think>\n{thoughts}\n</think>\n\n" if thoughts is not None else ""
    text += reply.get("content") or ""
    for call in reply.get("tool_calls") or []:
        name, separator = json.dumps(_function(call)["name"]), "\n" if text else ""
        text += f'{separator}<tool_call>\n{{"name": {name}, "arguments": {_arguments(call)}}}\n</tool_call>'
    return text


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = call.get("function") or call
    return function


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = _function(call).get("arguments", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
