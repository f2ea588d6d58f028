"""Records agent programs that speak OpenAI's dialect, token by token, without their knowing.

    python -m atroposlib.envs.server_handling.managed_server_proxy --config servers.json --port 9100

``POST /sessions/create`` makes a session; the program gets ``base_url=http://127.0.0.1:9100/{uuid}/v1`` and the
session's ``secret`` as its API key. Its requests go to a token-exact engine as ids; ``GET /{uuid}/nodes`` tells what
was recorded. Tools, ``n``, ``stop``, ``seed``, ``top_p`` and fields that the engine knows pass; the events of a stream
come once the answer is whole (``capture_stream``). A request that is sent again gets the same answer
(``capture_session``).

``servers.json`` holds ``{"servers": [{"base_url": …, "server_type": …}, …], "model_name": …, "tokenizer_name": …}``, or
the list alone. Only this machine reaches the proxy, unless it is given a token for its own routes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from atroposlib.envs.server_handling.capture_proxy import CaptureProxy
from atroposlib.envs.server_handling.capture_session import CaptureSessions
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that none breaks in their hands."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def create_app(
    server_manager: ServerManager,
    tokenizer: Any = None,
    model_name: str = "unknown",
    *,
    token: str | None = None,
    expires_after_s: float = 3600.0,
    max_sessions: int = 4096,
) -> FastAPI:
    """The proxy as an application over these engines; ``tokenizer`` is their model's.

    ``token``: asked for by the proxy's own routes (making and listing sessions, ``/setup``, ``/servers``).
    Sessions expire ``expires_after_s`` seconds after their last use. The engines stay the caller's to close.
    """
    sessions = CaptureSessions(expires_after_s, max_sessions)
    return app_of(CaptureProxy(server_manager, tokenizer, model_name, token, sessions))


def app_of(proxy: CaptureProxy) -> FastAPI:
    """The proxy as an application; its sessions end with it."""
    from fastapi import FastAPI

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await proxy.sessions.close()

    return FastAPI(routes=proxy.routes(), lifespan=lifespan, openapi_url=None)


def read_servers(path: Path) -> tuple[list[APIServerConfig], str | None]:
    """The engines of ``servers.json``, and the name of their tokenizer where it stands there. Raises: ConfigError."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    shared = dict(content) if isinstance(content, dict) else {"servers": content}
    servers = shared.pop("servers", None)
    if not isinstance(servers, list) or not servers or not all(isinstance(server, dict) for server in servers):
        raise ConfigError(f'--config {path}: expected {{"servers": [{{"base_url": ...}}, ...]}}')
    try:
        configs = [APIServerConfig(**{**shared, **server}) for server in servers]
    except ValidationError as error:
        raise ConfigError(f"--config {path}: {error}") from error
    names = [config.tokenizer_name for config in configs if config.tokenizer_name != "none"]
    return configs, names[0] if names else None


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; the exit status, 2 where the arguments, the address or an engine are wrong."""
    parser = argparse.ArgumentParser(prog="managed_server_proxy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="JSON file that lists the engines")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--tokenizer", help="of the engines' model (default: as the file or the engine says)")
    parser.add_argument("--token-env", metavar="NAME", help="variable with the token of the proxy's own routes")
    parser.add_argument("--expiry", type=float, default=3600.0, metavar="SECONDS", help="of a session nobody uses")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(arguments))
    except (ConfigError, EngineRefused, EngineUnavailable) as error:
        sys.stderr.write(f"managed_server_proxy: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from atroposlib.envs.tokenizers import load_tokenizer

    token = _token(arguments)
    configs, named = read_servers(arguments.config)
    with _listen(arguments.host, arguments.port) as listener:
        async with ServerManager(configs) as manager:
            await manager.wait_until_ready()
            facts = await manager.probe()
            name = arguments.tokenizer or named or facts.model_root or facts.model_name
            tokenizer = load_tokenizer(name, "--tokenizer")
            app = create_app(manager, tokenizer, facts.model_name, token=token, expires_after_s=arguments.expiry)
            logger.info("recording on http://%s:%d, engine model %s", arguments.host, arguments.port, facts.model_name)
            await server_of(app).serve(sockets=[listener])


def server_of(app: FastAPI) -> uvicorn.Server:
    """What serves the proxy, on listeners of the caller's."""
    import uvicorn

    config = uvicorn.Config(app, access_log=False, log_config=None, timeout_keep_alive=KEEP_ALIVE_S)
    return uvicorn.Server(config)


def _token(arguments: argparse.Namespace) -> str | None:
    token = os.environ.get(arguments.token_env, "") if arguments.token_env else None
    if token == "":
        raise ConfigError(f"--token-env names {arguments.token_env}, which is not set in the environment")
    if token is None and arguments.host not in LOOPBACK:
        raise ConfigError(f"--host {arguments.host} is reachable from elsewhere: set a token by --token-env")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another --port") from error
    # asyncio sees to this only on listeners of its own; without it each answer waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


if __name__ == "__main__":
    sys.exit(main())
