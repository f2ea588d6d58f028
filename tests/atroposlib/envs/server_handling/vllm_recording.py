"""What a real vLLM answered to the requests that our clients send; ``scripts/record_vllm.py`` records it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.atroposlib.envs.server_handling.stub_engine import StubEngine

FILE = Path(__file__).with_suffix(".json")
FIXED = ("object", "role", "type", "owned_by", "finish_reason", "index")
"""Fields whose values are part of an answer's shape."""
RANDOM_ID = re.compile(r"^(cmpl|chatcmpl|chatcmpl-tool|modelperm)-[0-9a-f]{8,}$")
NUMBERS_IN_LINES = re.compile(r"\[\n\s+([-\d.e+]+(?:,\n\s+[-\d.e+]+)*)\n\s*\]")


@dataclass(frozen=True)
class Exchange:
    """A request and, where it was asked, the answer: its status and its JSON, ``None`` where there is none."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    status: int = 0
    answer: Any = None


@dataclass(frozen=True)
class Recording:
    """Exchanges by name; ``model`` is the name that is served."""

    version: str
    model: str
    max_model_len: int
    exchanges: dict[str, Exchange]

    def to_json(self) -> str:
        """Indented, with lists of numbers on one line."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        return NUMBERS_IN_LINES.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text) + "\n"


def load() -> Recording:
    """The recording that is kept beside the tests."""
    told = json.loads(FILE.read_text())
    return Recording(**told | {"exchanges": {name: Exchange(**each) for name, each in told["exchanges"].items()}})


def ask(url: str, request: Exchange) -> Exchange:
    """Send a request to an engine."""
    data = None if request.body is None else json.dumps(request.body).encode()
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(url + request.path, data, headers, method=request.method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    return replace(request, status=status, answer=json.loads(content) if content else None)


def normalised(exchange: Exchange) -> Exchange:
    """Without what differs from one start of the same vLLM to the next."""
    return replace(exchange, answer=_normalised(exchange.answer))


def _normalised(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _normalised(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_normalised(each, name) for each in value]
    if name == "created":
        return 0
    if name == "root" and value:
        return Path(value).name
    if name == "system_fingerprint" and value:
        return re.sub("-[0-9a-f]{8}$", "", value)
    return RANDOM_ID.sub(r"\1-0", value) if name == "id" else value


def shape(value: Any, name: str = "") -> Any:
    """What must be alike in two answers to one request: keys and types, and the values of ``FIXED`` fields.

    Of a list it matters which shapes its entries have, not how many there are. Objects that are keyed by tokens
    (``prompt_logprobs`` and the ``top_logprobs`` of a text) are lists of their values.
    """
    if isinstance(value, dict) and name in ("prompt_logprobs", "top_logprobs") and "token" not in value:
        return {"by token": shape(list(value.values()))}
    if isinstance(value, dict):
        return {key: shape(each, key) for key, each in sorted(value.items())}
    if isinstance(value, list):
        shapes = {json.dumps(each): each for each in (shape(each, name) for each in value)}
        return [shapes[each] for each in sorted(shapes)]
    return value if name in FIXED else type(value).__name__


def form(exchange: Exchange) -> dict[str, Any]:
    """The shape of an answer with its status; an error has to be the same word for word."""
    told = exchange.answer if exchange.status >= 400 else shape(exchange.answer)
    return {"status": exchange.status, "answer": told}


class ReplayedEngine(StubEngine):
    """Answers what was recorded, to nothing but the requests that were recorded."""

    def __init__(self, recording: Recording) -> None:
        super().__init__([recording.model])
        self._recording = recording

    def routes(self) -> dict[str, Any]:
        return {f"{each.method} {each.path}": self._replay for each in self._recording.exchanges.values()}

    async def _replay(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read() or b"null")
        for each in self._recording.exchanges.values():
            if (each.method, each.path, each.body) == (request.method, request.path, body):
                content = "" if each.answer is None else json.dumps(each.answer, separators=(",", ":"))
                return web.Response(text=content, status=each.status, content_type="application/json")
        return web.json_response({"detail": f"this was not recorded: {body}"}, status=501)
