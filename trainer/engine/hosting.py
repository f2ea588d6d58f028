"""Putting an engine on the network: its thread, its HTTP server, and the end of both."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn

from trainer.config import ServingConfig
from trainer.engine.address import bind
from trainer.engine.chat import Words
from trainer.engine.scheduler import Engine, EngineConfig
from trainer.engine.server import create_app

logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed while it is taken up again."""
_GRACE_S = 3


class EngineHost:
    """One engine behind one address, bound at once; ``serve`` in this thread or ``start`` in one of its own.

    Raises: UsageError, where the address cannot be bound.
    """

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tool_call_parser: str | None = "hermes",
        root: str | None = None,
    ) -> None:
        words = Words(engine.tokenizer, tool_call_parser)
        self.engine = engine
        self._names = tuple(names)
        self._root = root or self._names[0]
        self._socket = bind(host, port)
        config = uvicorn.Config(
            create_app(engine, words, names, self._root),
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="engine-http", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve(self) -> None:
        """Serve until interrupted."""
        self._announce()
        self.engine.start()
        try:
            self._run()
        finally:
            self.engine.close()

    def start(self) -> None:
        """Serve in the background until ``close``."""
        self._announce()
        self.engine.start()
        self._thread.start()

    def close(self) -> None:
        """End server and engine; requests under way get an error."""
        self.engine.close()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def _announce(self) -> None:
        names = " and ".join(repr(name) for name in self._names)
        logger.info("Serving the model of %s on %s; it answers to the name %s.", self._root, self.url, names)
        if not self._socket.getsockname()[0].startswith(("127.", "::1")):
            logger.warning("Anybody who reaches %s may sample from this engine and change its weights.", self.url)


def host_engine(model: Any, tokenizer: Any, root: str, config: ServingConfig) -> EngineHost:
    """An engine over ``model``, loaded from ``root``, at the address of ``config``: bound, but not started.

    Raises: UsageError.
    """
    limits = EngineConfig(
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        kv_cache_bytes=int(config.kv_cache_gb * (1 << 30)),
        logprobs_mode=config.logprobs_mode,
        seed=config.seed,
    )
    return EngineHost(
        Engine(model, tokenizer, limits),
        config.names,
        host=config.host,
        port=config.port,
        tool_call_parser=config.tool_call_parser,
        root=root,
    )
