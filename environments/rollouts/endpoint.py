"""Where an agent program of one rollout finds its model: a capture proxy of its own, on a socket of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.envs.server_handling.capture_session import CaptureSession, CaptureSessions
from atroposlib.envs.server_handling.server_manager import ServerManager
from sandboxes.relay import Connect


@dataclass(frozen=True)
class Endpoint:
    """A session that is served; ``connect`` opens a connection to its proxy."""

    session: CaptureSession
    model_name: str
    connect: Connect

    def environment(self, port: int) -> dict[str, str]:
        """The variables by which a program in the box finds it at a port of the box's loopback."""
        url = f"http://127.0.0.1:{port}/{self.session.uuid}/v1"
        return {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": self.session.secret,
            "AGENT_MODEL": self.model_name,
        }


@contextlib.asynccontextmanager
async def open_endpoint(
    manager: ServerManager, tokenizer: Any, model_name: str, session: CaptureSession
) -> AsyncIterator[Endpoint]:
    """Serve one session until the block ends. Nobody can make another: its token is told to no one."""
    from atroposlib.envs.server_handling.capture_proxy import CaptureProxy
    from atroposlib.envs.server_handling.managed_server_proxy import app_of

    sessions = CaptureSessions(session.expires_after_s, limit=1)
    await sessions.add(session)
    app = app_of(CaptureProxy(manager, tokenizer, model_name, secrets.token_urlsafe(32), sessions))
    with tempfile.TemporaryDirectory(prefix="agent-endpoint-") as folder:
        path = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(128)
            async with _serving(app, listener):
                yield Endpoint(session, model_name, lambda: asyncio.open_unix_connection(path))


KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed while it is taken up again."""


@contextlib.asynccontextmanager
async def _serving(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves the process' signals to the environment, which has many of these."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",  # that each rollout's server comes and goes is nothing to tell
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="agent endpoint")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
