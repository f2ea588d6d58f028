"""A recorded rollout behind the face of an ``openai.AsyncOpenAI`` client, for libraries that want one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.envs.server_handling.managed_server import ManagedServer


class _Completions:
    def __init__(self, complete: Any) -> None:
        self._complete = complete

    async def create(self, **kwargs: Any) -> Any:
        """One request, with the arguments of OpenAI's API."""
        return await self._complete(**kwargs)


class _Chat:
    def __init__(self, managed_server: ManagedServer) -> None:
        self.completions = _Completions(managed_server.chat_completion)


class ManagedServerAdapter:
    """Offers ``chat.completions.create``, ``completions.create`` and ``base_url``; the rest of a client it is not."""

    def __init__(self, managed_server: ManagedServer, base_url: str | None = None) -> None:
        self.managed_server = managed_server
        self.base_url = base_url
        self.chat = _Chat(managed_server)
        self.completions = _Completions(managed_server.completion)

    async def post(self, *args: Any, **kwargs: Any) -> Any:
        """Not offered."""
        raise NotImplementedError("a recorded rollout answers chat.completions and completions only")

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        """Not offered."""
        raise NotImplementedError("a recorded rollout cannot be copied; open another managed_server")
