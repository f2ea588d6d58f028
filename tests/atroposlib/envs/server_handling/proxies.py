"""A capture proxy on a real port, over a scripted engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from atroposlib.envs.server_handling.managed_server_proxy import create_app
from atroposlib.envs.server_handling.server_manager import ServerManager


@asynccontextmanager
async def serving_proxy(manager: ServerManager, tokenizer: Any = None, **settings: Any) -> AsyncIterator[str]:
    """Serve a proxy on a free port of the loopback; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(create_app(manager, tokenizer, "model", **settings), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
