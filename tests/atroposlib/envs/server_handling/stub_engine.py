"""A real HTTP server that stands for an engine: its answers are computed from the request, and it keeps what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer

EOS = ByteTokenizer.eos_token_id
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def echo(prompt: list[int], max_tokens: int) -> list[int]:
    """What the stub samples: the last printable bytes of the prompt reversed, then the end-of-turn id."""
    said = [number for number in prompt if 32 <= number < 127][-8:][::-1]
    return [*said, EOS][:max_tokens]


def logprob(position: int, token: int) -> float:
    """The stub's logprob of a sampled id."""
    return -((position + token) % 7 + 1) / 8


class StubEngine:
    """Speaks the dialect of stock vLLM. ``failures`` is used up first: statuses, or ``None`` to drop the connection.

    ``refusals``: what it says, with a 404, to each request to these paths.
    """

    def __init__(self, models: list[str] | None = None, *, gives_ids: bool = True, max_n: int = 100) -> None:
        self.models = ["stub"] if models is None else models
        self.gives_ids = gives_ids
        self.max_n = max_n
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
        finally:
            self.in_flight -= 1

    def _fail(self, request: web.Request, status: int | None) -> web.StreamResponse:
        if status is None:
            assert request.transport is not None
            request.transport.close()
            raise ConnectionResetError
        return web.json_response({"error": {"message": f"planned failure {status}"}}, status=status)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name, "max_model_len": 4096} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        message = {
            "role": "assistant",
            "content": f"you said {body['messages'][-1]['content']}",
            "reasoning_content": "r",
        }
        choices = [
            {"index": i, "message": message, "finish_reason": "stop", "logprobs": None}
            for i in range(min(body.get("n") or 1, self.max_n))
        ]
        return self._answer("chat.completion", choices)

    async def _completions(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        prompt = body["prompt"] if isinstance(body["prompt"], list) else list(body["prompt"].encode())
        sampled = echo(prompt, body.get("max_tokens") or 16)
        choices = [self._choice(i, prompt, sampled) for i in range(min(body.get("n") or 1, self.max_n))]
        return self._answer("text_completion", choices)

    def _choice(self, index: int, prompt: list[int], sampled: list[int]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": ByteTokenizer().decode(sampled, skip_special_tokens=True),
            "finish_reason": "stop" if sampled[-1:] == [EOS] else "length",
            "logprobs": None,
        }
        if self.gives_ids:
            choice["prompt_token_ids"], choice["token_ids"] = prompt, sampled
            choice["logprobs"] = {"token_logprobs": [logprob(i, token) for i, token in enumerate(sampled)]}
            choice["weight_versions"] = [{"version": "step-3", "start": 0, "end": len(sampled)}]
        return choice

    def _answer(self, kind: str, choices: list[dict[str, Any]]) -> web.Response:
        answer = {
            "id": "stub-1",
            "object": kind,
            "created": 1,
            "model": "stub",
            "choices": choices,
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
        self.change(answer)
        return web.json_response(answer, dumps=lambda value: json.dumps(value, separators=self.separators))


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
