"""One rollout recorded by a capture proxy, with the face of a ``ManagedServer``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atroposlib.envs.server_handling.completions import read_chat_completion, read_completion
from atroposlib.envs.server_handling.http_client import EngineHttp
from atroposlib.envs.server_handling.sequence_node import SequenceNode
from atroposlib.errors import InferenceError

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 1200.0


class ProxiedServer:
    """A session of a proxy. What was recorded is fetched after each answer, so that it can be read at any time."""

    def __init__(self, root: str, session: dict[str, Any]) -> None:
        self.session_id: str = session["uuid"]
        self.base_url = f"{root}/{self.session_id}/v1"
        """For programs that speak OpenAI's dialect; their API key is ``secret``."""
        self.secret: str = session["secret"]
        self._at = f"{root}/{self.session_id}"
        self._http = EngineHttp({"authorization": f"Bearer {self.secret}"}, ANSWER_TIMEOUT_S)
        self._state: dict[str, Any] = {"nodes": []}
        self._told: dict[str, Any] = {}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Complete a chat; see ``ManagedServer.chat_completion``."""
        answer = read_chat_completion(await self._http.post(f"{self.base_url}/chat/completions", _flat(kwargs)))
        await self.fetch_state()
        return answer

    async def completion(self, **kwargs: Any) -> Completion:
        """Complete a text or ids; see ``ManagedServer.completion``."""
        if kwargs.get("input_ids") is not None:
            kwargs["prompt"] = kwargs.pop("input_ids")
        answer = read_completion(await self._http.post(f"{self.base_url}/completions", _flat(kwargs)))
        await self.fetch_state()
        return answer

    async def fetch_state(self) -> dict[str, Any]:
        """Ask the proxy what was recorded, also by a program that used ``base_url``."""
        told = await self._http.get(f"{self._at}/nodes")
        self._state = {"nodes": [SequenceNode.model_construct(**node) for node in told["nodes"]]}
        self._told = told
        return self._state

    def get_state(self) -> dict[str, Any]:
        """``{"nodes": [SequenceNode, …]}`` as last fetched."""
        return self._state

    @property
    def failures(self) -> list[str]:
        """Requests that failed and were not repeated with success, as last fetched."""
        return list(self._told.get("failures", ()))

    def certificate(self, node: SequenceNode) -> Any:
        """What the proxy says about a node."""
        return (node.metadata or {})["certificate"]

    def reset(self) -> None:
        """Forget what was fetched; the session ends with the block that opened it."""
        self._state, self._told = {"nodes": []}, {}

    async def close(self) -> None:
        """End the session at the proxy."""
        try:
            await self._http.delete(self._at)
        except InferenceError as error:
            logger.debug("the session %s was gone already: %s", self.session_id, error)
        finally:
            await self._http.close()


@asynccontextmanager
async def open_proxied(proxy_url: str, token: str | None = None, **wanted: Any) -> AsyncIterator[ProxiedServer]:
    """A session of the proxy at ``proxy_url``; ``wanted`` is what ``POST /sessions/create`` takes.

    Raises: EngineUnavailable, EngineRefused.
    """
    root = "{0.scheme}://{0.netloc}".format(urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}"))
    http = EngineHttp({"authorization": f"Bearer {token}"} if token else {}, ANSWER_TIMEOUT_S)
    try:
        session = await http.post(f"{root}/sessions/create", {k: v for k, v in wanted.items() if v is not None})
    finally:
        await http.close()
    server = ProxiedServer(root, session)
    try:
        yield server
    finally:
        await server.close()
        server.reset()


def _flat(arguments: dict[str, Any]) -> dict[str, Any]:
    """The body of a request: ``extra_body`` is part of it, ``split`` concerns clients only."""
    body = {name: value for name, value in arguments.items() if value is not None and name != "split"}
    return {**body, **(body.pop("extra_body", None) or {})}
