"""A trainer, as the trajectory server sees one: registers, and takes batches."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp


class Trainer:
    """Takes batches from the server at ``url``; nothing is trained."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.batches: list[list[dict[str, Any]]] = []
        self._last_batch: str | None = None

    async def register(self, **changes: Any) -> None:
        """Register a run; ``changes`` go over the usual registration."""
        fields = {
            "wandb_group": "group",
            "wandb_project": "project",
            "batch_size": 4,
            "max_token_len": 512,
            "checkpoint_dir": "",
            "save_checkpoint_interval": -1,
            "starting_step": 0,
            "num_steps": 3,
        }
        await self._ask("POST", "/register", {**fields, **changes})

    async def take(self, batches: int) -> list[list[dict[str, Any]]]:
        """The next ``batches`` batches, as they become ready. The last one is acknowledged by one more request."""
        taken = []
        while len(taken) < batches:
            answer = await self._ask("GET", f"/batch?ack={self._last_batch}" if self._last_batch else "/batch")
            if answer["batch"]:
                taken.append(answer["batch"])
            else:
                await asyncio.sleep(0.02)
        self.batches += taken
        return taken

    async def start(self) -> None:
        """Ask for a batch once, ready or not: from then on environments may register."""
        await self._ask("GET", "/batch")

    async def status(self) -> dict[str, Any]:
        """The server's own account."""
        status: dict[str, Any] = await self._ask("GET", "/status")
        return status

    async def reset(self) -> None:
        """Wipe the server."""
        await self._ask("GET", "/reset_data")

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        async with (
            aiohttp.ClientSession(headers=self.headers) as session,
            session.request(method, self.url + path, json=body) as response,
        ):
            assert response.status == 200, await response.text()
            self._last_batch = response.headers.get("x-batch-id", self._last_batch)
            return await response.json(content_type=None) if response.content_type != "text/plain" else None


def numbers(batch: list[dict[str, Any]]) -> list[int]:
    """The items whose groups a batch holds."""
    return [group["tokens"][0][0] for group in batch]
