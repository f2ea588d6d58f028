"""A policy of random commands behind an OpenAI-compatible address: the control against which learning is measured.

    python -m environments.terminal_test_env.random_policy --port 9001 --seed 0

To a request it answers with a call of ``terminal``: one command of the shell's repertoire, at random, about the files
and words that the request names. To a tool's result it answers with what the tool printed. It is as well-formed as can
be, and it has learned nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.terminal_test_env.repertoire import random_command

if TYPE_CHECKING:
    from fastapi import FastAPI

MODEL_NAME = "random-commands"
Message = dict[str, Any]


def reply(messages: Sequence[Message], seed: int) -> Message:
    """The next message of the policy; the same conversation and seed, the same message."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"Answer: {_printed(str(last['content']))}"}
    request = str(last["content"])
    command = random_command(random.Random(f"{seed}|{request}"), request)
    function = {"name": "terminal", "arguments": json.dumps({"command": command})}
    call = {"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _printed(result: str) -> str:
    """The output in a tool's result, or "done" where there is none."""
    try:
        return str(json.loads(result)["output"]).strip() or "done"
    except (ValueError, KeyError, TypeError):
        return "done"


def create_app(seed: int) -> FastAPI:
    """The routes that an environment needs to evaluate: health, models, chat."""
    from fastapi import Body, FastAPI

    app = FastAPI(title="random commands")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "local"}]}

    @app.post("/v1/chat/completions")
    def chat(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008 - FastAPI's way
        message = reply(body["messages"], seed)
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": 0}
        return {**answer, "model": MODEL_NAME, "choices": [choice], "usage": usage}

    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m environments.terminal_test_env.random_policy", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    uvicorn.run(create_app(options.seed), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
