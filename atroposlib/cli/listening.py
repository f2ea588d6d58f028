"""Put an application on an address of this machine."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

from atroposlib.errors import ConfigError

_BACKLOG = 2048
_HIGHEST_PORT = 65535
_STARTUP_FAILED = 3


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens. Raises: ConfigError where it cannot be had."""
    if not 0 <= port <= _HIGHEST_PORT:
        raise ConfigError(f"--port {port} is no port: they go from 0 to {_HIGHEST_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); end what listens there, or choose another "
            "--port"
        ) from error
    # asyncio sees to this only on listeners of its own; without it an answer waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(app: Any, listener: socket.socket, **settings: Any) -> None:
    """Serve until interrupted; ``settings`` are uvicorn's. Raises: SystemExit where the application did not start."""
    import uvicorn

    host, port = listener.getsockname()[:2]
    sys.stderr.write(f"Serving on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C ends it)\n")
    # requests are not logged: polls of environments, ten a second each, would drown everything else
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, **settings))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(_STARTUP_FAILED)
