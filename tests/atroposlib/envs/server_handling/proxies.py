"""A capture proxy on a real port, over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from atroposlib.envs.server_handling.managed_server_proxy import _listen, create_app, server_of
from atroposlib.envs.server_handling.server_manager import ServerManager


@asynccontextmanager
async def serving_proxy(manager: ServerManager, tokenizer: Any = None, **settings: Any) -> AsyncIterator[str]:
    """Serve a proxy on a free port of the loopback; yields its URL."""
    with _listen("127.0.0.1", 0) as listener:
        server = server_of(create_app(manager, tokenizer, "model", **settings))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


QUESTION = [{"role": "user", "content": "2 + 2?"}]


class Proxy:
    """A proxy under test: its engine, its URL, and how to talk to it."""

    def __init__(self, engine, url, http):
        self.engine, self.url, self.http = engine, url, http

    async def create(self, **wanted):
        return await self.call("POST", "/sessions/create", json=wanted)

    async def call(self, method, path, session=None, status=200, headers=None, **kwargs):
        headers = {**({"authorization": f"Bearer {session['secret']}"} if session else {}), **(headers or {})}
        async with self.http.request(method, self.url + path, headers=headers, **kwargs) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def ask(self, session, body=None, **kwargs):
        body = {"messages": QUESTION} if body is None else body
        return await self.call("POST", f"/{session['uuid']}/v1/chat/completions", session, json=body, **kwargs)

    async def nodes(self, session):
        return (await self.call("GET", f"/{session['uuid']}/nodes", session))["nodes"]

    def client(self, session, **settings):
        base_url = f"{self.url}/{session['uuid']}/v1"
        return openai.AsyncOpenAI(base_url=base_url, api_key=session["secret"], **settings)
