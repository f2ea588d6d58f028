"""An engine over HTTP that adds up, for programs that are started meanwhile."""

from __future__ import annotations

import json

from aiohttp import web

from tests.environments.agent_engine import AgentEngine


class AddingEngine(AgentEngine):
    """Answers chats; tells no token ids."""

    def __init__(self) -> None:
        super().__init__(gives_ids=False)

    async def _chat(self, request: web.Request) -> web.Response:
        words = json.loads(await request.read())["messages"][-1]["content"].removesuffix("?").split()
        answer = f"It is \\boxed{{{int(words[2]) + int(words[4])}}}"
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return self._answer("chat.completion", [choice])
