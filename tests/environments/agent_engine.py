"""An engine over HTTP that plays an agent with a terminal: it runs one command, then answers; it also judges answers.

It speaks both forms of stock vLLM, chat and token ids, over a tokenizer of bytes that ``save_tokenizer`` puts on disk.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, logprob, serving
from tests.byte_tokenizer import make_tokenizer

COMMAND = "echo 'def test_sum(): assert 1 + 1 == 2' > test.py && cat test.py"
ANSWER = "I looked, and it is so."
VERDICTS = ('{"score": 0.75}', '{"score": 0.25}')


class AgentEngine(StubEngine):
    """One command per rollout. Verdicts alternate, so that a group's rewards differ."""

    def __init__(self, *, gives_ids: bool = True) -> None:
        super().__init__(gives_ids=gives_ids)
        self.tokenizer = make_tokenizer()
        self.verdicts = 0
        self.command = COMMAND

    @property
    def call(self) -> dict[str, Any]:
        """What the agent does first."""
        return {"name": "terminal", "arguments": {"command": self.command}}

    def answer(self, conversation: str) -> str:
        """What the agent says last."""
        return ANSWER

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name, "max_model_len": 65536} for name in self.models]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if "You grade an answer" in str(body["messages"][0]["content"]):
            message["content"] = VERDICTS[self.verdicts % 2]
            self.verdicts += 1
        elif body["messages"][-1]["role"] == "tool":
            message["content"] = self.answer(str(body["messages"]))
        else:
            function = {"name": "terminal", "arguments": json.dumps(self.call["arguments"])}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return self._answer("chat.completion", [choice])

    async def _completions(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        prompt = body["prompt"] if isinstance(body["prompt"], list) else self.tokenizer.encode(body["prompt"])
        conversation = self.tokenizer.decode(prompt)
        first = "<|im_start|>tool" not in conversation
        text = f"<tool_call>\n{json.dumps(self.call)}\n</tool_call>" if first else self.answer(conversation)
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id][: body.get("max_tokens") or 16]
        choice = self._choice(0, prompt, ids)
        choice["text"] = text
        choice["finish_reason"] = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        if self.gives_ids:
            choice["logprobs"] = {"token_logprobs": [logprob(i, token) for i, token in enumerate(ids)]}
        return self._answer("text_completion", [choice])


@contextmanager
def serving_in_a_thread(engine: AgentEngine, port: int = 0) -> Iterator[str]:
    """Serve it for programs that are started meanwhile; yields its URL without a path."""
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(engine, port):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield engine.url
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join(20)


def save_tokenizer(folder: Path) -> Path:
    """A folder as ``--env.tokenizer_name`` takes it."""
    make_tokenizer().save_pretrained(folder)
    return folder
