"""An engine that costs next to nothing, so that a benchmark measures its clients: prepared answers, bare protocol.

    python benchmarks/fake_engine.py --latency 0.05

prints the port it listens on. ``POST /v1/chat/completions`` answers with a tool call; ``POST /v1/completions`` answers
ids with ids in the dialect of vLLM, the prompt echoed byte by byte. ``GET /v1/models`` names one model.
"""

from __future__ import annotations

import argparse
import asyncio
import json

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
MODELS = json.dumps({"data": [{"id": "fake", "max_model_len": 1_000_000}]}).encode()


def chat_answer(answer_chars: int) -> bytes:
    """One message with a thought and a tool call."""
    function = {"name": "terminal", "arguments": json.dumps({"command": "ls -la /workspace"})}
    message = {
        "role": "assistant",
        "content": ("thinking about the task " * (answer_chars // 24 + 1))[:answer_chars],
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "fake",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
        }
    ).encode()


def token_answer(ids: list[int]) -> tuple[bytes, bytes]:
    """What stands before and after the echoed prompt."""
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
    }
    rest = json.dumps(choice).encode()[1:]
    return b'{"id":"cmpl-1","object":"text_completion","choices":[{"prompt_token_ids":', b"," + rest + b"]}"


class FakeEngine(asyncio.Protocol):
    """One connection; requests may follow each other on it."""

    def __init__(self, latency: float, chat: bytes, tokens: tuple[bytes, bytes]) -> None:
        self._latency, self._chat, self._tokens = latency, chat, tokens
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if path.endswith(b"/chat/completions"):
            answer = self._chat
        elif path.endswith(b"/completions"):
            start = body.index(b'"prompt":') + len(b'"prompt":')
            is_text = body[start : start + 1] == b'"'  # whose ids it does not tell
            echo = b"null" if is_text else body[start : body.index(b"]", start) + 1]
            answer = self._tokens[0] + echo + self._tokens[1]
        else:
            answer = MODELS
        asyncio.get_running_loop().call_later(self._latency, self._transport.write, HEAD % len(answer) + answer)


async def serve(options: argparse.Namespace) -> None:
    """Serve until killed."""
    chat, tokens = chat_answer(options.answer_chars), token_answer(json.loads(options.token_ids))
    server = await asyncio.get_running_loop().create_server(
        lambda: FakeEngine(options.latency, chat, tokens), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds until an answer")
    parser.add_argument("--answer-chars", type=int, default=400)
    parser.add_argument("--token-ids", default="[1, 2, 3]", help="what is sampled, as a JSON list")
    asyncio.run(serve(parser.parse_args()))
