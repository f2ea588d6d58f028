"""A trajectory server in a thread, on a port that survives its restarts."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import uvicorn

from atroposlib.api.server import create_app


class TrajectoryServer:
    """Start and stop it at will; with a ``store`` it remembers."""

    def __init__(self, store: Path | None = None, token: str | None = None) -> None:
        self._store = store
        self._token = token
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self._port))
        bound.listen()
        app = create_app(store=self._store, token=self._token)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
        self._socket = bound
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> TrajectoryServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
