"""A real HTTP server that stands for an engine: its answers are computed from the request, and it keeps what it saw.

It follows a real vLLM: ``vllm_recording.json`` holds what that answered, ``test_vllm_recording.py`` compares the two.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from tests.atroposlib.envs.server_handling import vllm_forms as forms
from tests.atroposlib.envs.server_handling import vllm_rules as rules
from tests.atroposlib.envs.server_handling.vllm_forms import logprob

__all__ = ["EOS", "StubEngine", "echo", "logprob", "serving"]

EOS = ByteTokenizer.eos_token_id
IN_IDS = {"logprobs": 0, "return_token_ids": True}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def echo(prompt: list[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """What the stub samples: the last printable bytes of the prompt reversed, then the end-of-turn id.

    Without any it asks back. Where the end is ignored, it says the same again and again.
    """
    said = [number for number in prompt if 32 <= number < 127][-8:][::-1] or [ord("?")]
    if ignore_eos:
        return list(itertools.islice(itertools.cycle(said), max_tokens))
    return [*said, EOS][:max_tokens]


@dataclass(frozen=True)
class Sampled:
    """One answer: its ids, its text without special tokens and what follows a stop text, and why it ended."""

    ids: list[int]
    text: str
    finish_reason: str
    stop_reason: str | None = None


class StubEngine:
    """Speaks the dialect of stock vLLM. ``failures`` is used up first: statuses, or ``None`` to drop the connection.

    ``refusals``: what it says, with a 404, to each request to these paths.
    ``unlisted``: models that it serves beside those that it lists.
    ``weight_version``: the weights that sampled, told with each choice; stock vLLM does not tell.
    """

    def __init__(
        self,
        models: list[str] | None = None,
        *,
        gives_ids: bool = True,
        max_n: int = 100,
        max_model_len: int = 4096,
        unlisted: Sequence[str] = (),
        weight_version: str | None = None,
    ) -> None:
        self.models = ["stub"] if models is None else models
        self.gives_ids = gives_ids
        self.max_n = max_n
        self.max_model_len = max_model_len
        self.unlisted = unlisted
        self.weight_version = weight_version
        self.tokenizer: Any = ByteTokenizer()
        self.failures: list[int | None] = []
        self.refusals: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.hold: asyncio.Event | None = None
        self.change: Callable[[dict[str, Any]], None] = lambda answer: None
        self.url = ""
        self.separators = (",", ":")

    def paths(self) -> list[str]:
        """Paths asked, in order."""
        return [path for path, _ in self.requests]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Bodies of the requests to one path."""
        return [body for asked, body in self.requests if asked == path]

    def routes(self) -> dict[str, Handler]:
        """What the engine answers, by method and path."""
        return {
            "GET /health": self._health,
            "GET /v1/models": self._models,
            "POST /v1/chat/completions": self._chat,
            "POST /v1/completions": self._completions,
        }

    @web.middleware
    async def keep(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record a request; fail it if a failure is planned; count how many run at once."""
        body = json.loads(await request.read() or b"{}")
        self.requests.append((request.path, body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.failures:
            return self._fail(request, self.failures.pop(0))
        if request.path in self.refusals:
            return web.json_response({"error": {"message": self.refusals[request.path]}}, status=404)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.hold is not None and request.method == "POST":
                await self.hold.wait()
            return await handler(request)
        except rules.Refused as refused:
            return web.json_response(refused.body, status=refused.status)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as unknown:
            return web.json_response({"detail": unknown.reason}, status=unknown.status)
        finally:
            self.in_flight -= 1

    def _fail(self, request: web.Request, status: int | None) -> web.StreamResponse:
        if status is None:
            assert request.transport is not None
            request.transport.close()
            raise ConnectionResetError
        refused = rules.Refused(f"planned failure {status}", status=status, kind=HTTPStatus(status).phrase)
        return web.json_response(refused.body, status=status)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        cards = [forms.model_card(name, self.max_model_len) for name in self.models]
        return web.json_response({"object": "list", "data": cards})

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self._check(body)
        messages = [{**each, "content": str(each.get("content") or "")} for each in body["messages"]]
        prompt = self.tokenizer.apply_chat_template(messages, tools=body.get("tools"), add_generation_prompt=True)
        limit = rules.room(prompt, body.get("max_tokens"), self.max_model_len, as_text=True)
        call = called(body)
        said = f"you said {messages[-1]['content']}"
        said = said if call is None else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        ids = self.tokenizer.encode(said)
        ids = [*ids, self.tokenizer.eos_token_id] if not body.get("ignore_eos") else ids * limit
        sampled = self._ended(ids[:limit], body)
        count = min(body.get("n") or 1, self.max_n)
        choices = [self._chat_choice(index, sampled, body, call) for index in range(count)]
        told = prompt if self.gives_ids and body.get("return_token_ids") else None
        more = {"prompt_token_ids": told, "prompt_logprobs": None, "prompt_text": None}
        return self._answer("chat.completion", choices, len(prompt), len(sampled.ids) * count, **more)

    async def _completions(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self._check(body)
        given = body["prompt"]
        prompt = given if isinstance(given, list) else self.tokenizer.encode(given)
        rules.check_ids(prompt, len(self.tokenizer))
        wanted = 16 if body.get("max_tokens") is None else body["max_tokens"]
        limit = rules.room(prompt, wanted, self.max_model_len, as_text=isinstance(given, str))
        sampled = self._ended(echo(prompt, limit, ignore_eos=bool(body.get("ignore_eos"))), body)
        count = min(body.get("n") or 1, self.max_n)
        choices = [self._choice(index, prompt, sampled.ids, body) for index in range(count)]
        return self._answer("text_completion", choices, len(prompt), len(sampled.ids) * count)

    def _check(self, body: dict[str, Any]) -> None:
        rules.check_model(body, self.models, self.unlisted)
        rules.check_parameters(body)

    def _ended(self, ids: list[int], body: dict[str, Any]) -> Sampled:
        """``ids`` up to the first stop text, and why they end."""
        stops = body.get("stop") or []
        for end in range(1, len(ids) + 1) if stops else ():
            text = self._text(ids[:end])
            found = next((stop for stop in ([stops] if isinstance(stops, str) else stops) if stop in text), None)
            if found is not None:
                return Sampled(ids[:end], text[: text.index(found)], "stop", found)
        ended = ids[-1:] == [self.tokenizer.eos_token_id] and not body.get("ignore_eos")
        return Sampled(ids, self._text(ids), "stop" if ended else "length")

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _choice(
        self, index: int, prompt: list[int], ids: list[int], body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One choice of a text; without a ``body`` as if ids and logprobs had been asked for."""
        body = IN_IDS if body is None else body
        sampled, echoed = self._ended(ids, body), bool(body.get("echo"))
        asked = body.get("logprobs")
        scores = asked if echoed and body.get("prompt_logprobs") is None else body.get("prompt_logprobs")
        choice: dict[str, Any] = {
            "index": index,
            # a prompt in ids is not written out
            "text": (body["prompt"] if echoed and isinstance(body["prompt"], str) else "") + sampled.text,
            "finish_reason": sampled.finish_reason,
            "stop_reason": sampled.stop_reason,
            "logprobs": None,
            "prompt_logprobs": None,
            "routed_experts": None,
        }
        if not self.gives_ids:
            return choice
        if asked is not None:
            choice["logprobs"] = forms.text_logprobs(self.tokenizer, prompt if echoed else [], sampled.ids, asked)
        if scores is not None:
            choice["prompt_logprobs"] = forms.prompt_logprobs(self.tokenizer, prompt, scores)
        if self.weight_version is not None:
            choice["weight_versions"] = [{"version": self.weight_version, "start": 0, "end": len(sampled.ids)}]
        in_ids = bool(body.get("return_token_ids"))
        return choice | {"token_ids": sampled.ids if in_ids else None, "prompt_token_ids": prompt if in_ids else None}

    def _chat_choice(
        self, index: int, sampled: Sampled, body: dict[str, Any], call: dict[str, Any] | None
    ) -> dict[str, Any]:
        """One choice of a chat; a call that was cut is text."""
        call = call if sampled.finish_reason == "stop" else None
        told = call and {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        alternatives = body.get("top_logprobs") or 0
        return {
            "index": index,
            "message": forms.chat_message(sampled.text, told),
            "finish_reason": "tool_calls" if call else sampled.finish_reason,
            "stop_reason": sampled.stop_reason,
            "logprobs": forms.chat_logprobs(self.tokenizer, sampled.ids, alternatives)
            if body.get("logprobs")
            else None,
            "token_ids": sampled.ids if self.gives_ids and body.get("return_token_ids") else None,
            "routed_experts": None,
        }

    def _answer(
        self, kind: str, choices: list[dict[str, Any]], consumed: int = 3, sampled: int = 2, **more: Any
    ) -> web.Response:
        answer = forms.envelope(kind, (self.models or ["stub"])[0], choices, consumed, sampled) | more
        self.change(answer)
        return web.json_response(answer, dumps=lambda value: json.dumps(value, separators=self.separators))


def called(body: dict[str, Any]) -> dict[str, Any] | None:
    """The tool call that is the stub's answer: where tools are offered, the first one with the user's words, once."""
    if not body.get("tools") or body["messages"][-1]["role"] == "tool":
        return None
    function = body["tools"][0]["function"]
    needed = function["parameters"].get("required", [])
    return {"name": function["name"], "arguments": dict.fromkeys(needed, body["messages"][-1]["content"])}


@asynccontextmanager
async def serving(engine: StubEngine, port: int = 0) -> AsyncIterator[str]:
    """Serve an engine on a free port of the loopback; yields its URL without a path."""
    app = web.Application(middlewares=[engine.keep])
    for route, handler in engine.routes().items():
        method, path = route.split()
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server = site._server
    assert server is not None
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine.url
    finally:
        await runner.cleanup()
