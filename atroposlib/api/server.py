"""The trajectory server: an HTTP face on a ``TrajectoryQueue``.

``create_app`` makes one with what it is given; ``app`` is one in memory, without a token, for
``uvicorn atroposlib.api.server:app``. The messages are those of ``atroposlib.wire``. State is one process's: run it
with one worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse
from pydantic import ValidationError

from atroposlib import wire
from atroposlib.api.access import AccessControl
from atroposlib.api.answers import BatchResponse, JsonAnswer, refusal
from atroposlib.api.aside import Aside
from atroposlib.api.incoming import IncomingGroup, parse_group, parse_groups
from atroposlib.api.request_bodies import RequestBodies
from atroposlib.api.store import open_store
from atroposlib.api.trajectory_queue import TrajectoryQueue
from atroposlib.api.waiting_groups import QueueLimits
from atroposlib.errors import GroupRefused, QueueError, QueueFull, StoreError, TrainerNotRegistered, UnknownEnvironment

_ASIDE_FROM_BYTES: Final = 256 * 1024  # a millisecond of work
_NO_EXAMPLE: Final[dict[str, list[Any]]] = {key: [] for key in wire.GROUP_KEYS}


@dataclass(frozen=True)
class ServerLimits:
    """What one server holds. ``env_expiry_s``: an environment not seen for so long takes no part any more."""

    body_bytes: int = 256 * 1024**2
    queue: QueueLimits = field(default_factory=QueueLimits)
    env_expiry_s: float = 60.0


def create_app(
    *,
    store: str | Path | None = None,
    token: str | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ServerLimits | None = None,
) -> FastAPI:
    """Make a server.

    ``store`` is the path of a file in which the queue outlives the process; ``token`` is asked of every client;
    ``allowed_origins`` are web pages that may use the server from a browser (CORS).

    Raises: StoreError.
    """
    limits = limits or ServerLimits()
    queue = TrajectoryQueue(open_store(store), limits.queue, limits.env_expiry_s)
    aside = Aside()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close()

    app = FastAPI(title="AtroposLib API", lifespan=lifespan)
    app.state.queue = queue
    _add_trainer_routes(app, queue)
    _add_environment_routes(app, queue, aside)
    _add_common_routes(app, queue)
    _add_error_answers(app, queue)
    # the last one added is the first to see a request
    app.add_middleware(RequestBodies, limit=limits.body_bytes, aside=aside)
    app.add_middleware(AccessControl, token=token, allowed_origins=allowed_origins)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(allowed_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_trainer_routes(app: FastAPI, queue: TrajectoryQueue) -> None:
    @app.post("/register")
    async def register(registration: wire.Registration) -> wire.Registered:
        answer = queue.register(registration)
        await queue.flushed()
        return answer

    @app.get("/batch", response_model=None)
    async def batch(ack: int | None = None) -> Response:
        try:
            handed_out = queue.next_batch(ack)
        except TrainerNotRegistered as error:
            return JsonAnswer({"status": "error", "message": str(error), "batch": []})
        if handed_out is not None:
            return BatchResponse(handed_out, queue)
        await queue.flushed()
        return JsonAnswer({"batch": None})


def _add_environment_routes(app: FastAPI, queue: TrajectoryQueue, aside: Aside) -> None:
    @app.post("/register-env", response_model=None)
    async def register_env(registration: wire.EnvRegistration) -> wire.EnvRegistered | wire.EnvWaits:
        answer = queue.register_env(registration)
        await queue.flushed()
        return answer

    @app.post("/disconnect-env", response_model=None)
    async def disconnect_env(identifier: wire.EnvIdentifier) -> wire.Disconnected:
        answer = queue.disconnect_env(identifier)
        await queue.flushed()
        return answer

    @app.get("/status-env", response_model=None)
    async def status_env(request: Request, env_id: int | None = None, run_id: str | None = None) -> JsonAnswer:
        if env_id is None:
            identifier = _identifier(await request.body())
        else:
            identifier = wire.EnvIdentifier(env_id=env_id, run_id=run_id)
        return JsonAnswer(queue.env_status(identifier))

    @app.post("/scored_data", response_model=wire.Received, openapi_extra=_body_of("ScoredDataGroup"))
    async def scored_data(request: Request) -> JsonAnswer:
        await _add_groups(queue, aside, parse_group, await _whole_body(request))
        return JsonAnswer({"status": "received"})

    @app.post("/scored_data_list", response_model=wire.ListReceived, openapi_extra=_body_of("list of ScoredDataGroup"))
    async def scored_data_list(request: Request) -> JsonAnswer:
        groups = await _add_groups(queue, aside, parse_groups, await _whole_body(request))
        return JsonAnswer({"status": "received", "groups_processed": groups})


def _add_common_routes(app: FastAPI, queue: TrajectoryQueue) -> None:
    @app.get("/")
    async def root() -> dict[str, str]:
        return {"message": "AtroposLib API"}

    @app.get("/wandb_info")
    async def wandb_info() -> wire.WandbInfo:
        return queue.wandb_info()

    @app.get("/info")
    async def info() -> wire.RunInfo:
        return queue.info()

    @app.get("/status")
    async def status() -> wire.ServerStatus:
        return queue.status()

    @app.get("/latest_example", response_model=None)
    async def latest_example() -> Response:
        example = queue.latest_example()
        return JsonAnswer(_NO_EXAMPLE) if example is None else Response(example, media_type="application/json")

    # old clients reset by GET
    @app.api_route("/reset_data", methods=["GET", "POST"])
    async def reset_data() -> PlainTextResponse:
        queue.reset()
        await queue.flushed()
        return PlainTextResponse("Reset successful")


def _add_error_answers(app: FastAPI, queue: TrajectoryQueue) -> None:
    @app.exception_handler(QueueError)
    async def answer_queue_error(_: Request, error: Exception) -> Response:
        return _refuse(error)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid_request(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # without the input, which may be a number that JSON has no word for
        faults = [{key: fault[key] for key in ("loc", "msg", "type")} for fault in error.errors()]
        text = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        return JsonAnswer({"status": "failure", "error": text, "detail": faults}, 422)


def _refuse(error: Exception) -> Response:
    match error:
        case GroupRefused():
            return refusal(422, str(error), field=error.field)
        case UnknownEnvironment():
            return refusal(404, str(error), register_again=True)
        case QueueFull():
            return refusal(503, str(error), retry_after_s=error.retry_after_s)
        case StoreError():
            return refusal(503, str(error), retry_after_s=60)
        case _:
            raise error


async def _add_groups(
    queue: TrajectoryQueue, aside: Aside, parse: Callable[[bytes], list[IncomingGroup]], body: bytes
) -> int:
    try:
        groups = await aside.run(parse, body, _ASIDE_FROM_BYTES)
    except GroupRefused as error:
        queue.count_refused(error)
        raise
    queue.add(groups)
    await queue.flushed()
    return len(groups)


async def _whole_body(request: Request) -> bytes:
    """The body, which ``RequestBodies`` hands over in one message; ``request.body()`` would copy it."""
    body: bytes = (await request.receive()).get("body", b"")
    return body


def _identifier(body: bytes) -> wire.EnvIdentifier:
    try:
        return wire.EnvIdentifier.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def _body_of(name: str) -> dict[str, Any]:
    return {
        "requestBody": {
            "description": f"A {name}, see atroposlib.wire",
            "content": {"application/json": {"schema": {}}},
            "required": True,
        }
    }


app = create_app()
