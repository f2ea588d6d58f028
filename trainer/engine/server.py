"""The engine's HTTP routes: the part of vLLM's dialect that environments and trainers use.

    GET  /health  /v1/models  /is_paused  /weight_info
    POST /v1/completions  /v1/chat/completions
    POST /pause?mode=abort|wait|keep  /resume  /reset_prefix_cache
    POST /collective_rpc {"method": "reload_weights", "kwargs": {"weights_path": DIR}}
    POST /update_weight_version {"new_version": NAME}

Beyond vLLM, every choice says which weights sampled it (``weight_versions``: spans of its tokens), and
``/weight_info`` says how logprobs are reported (``logprobs_mode``). Errors have OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from trainer.engine.answers import Answered, chat_answer, completion_answer, error_answer
from trainer.engine.chat import Words
from trainer.engine.protocol import ChatRequest, CompletionRequest, RpcRequest, VersionRequest
from trainer.engine.sampling import SamplingParams
from trainer.engine.scheduler import Engine, PauseMode
from trainer.engine.sequence import Completion
from trainer.errors import EngineError, InvalidRequest, UnknownModel

_MAX_BODY_BYTES = 64 << 20
_CLIENT_CLOSED_REQUEST = 499

_Model = TypeVar("_Model", bound=BaseModel)


class ClientGone(EngineError):
    """The client closed its connection; nobody will read the answer."""

    status = _CLIENT_CLOSED_REQUEST
    kind = "ClientClosedRequest"


def create_app(engine: Engine, words: Words, served_names: Sequence[str], root: str) -> FastAPI:
    """The engine's app.

    ``served_names``: the names it answers to; the first one stands for no name. ``root``: where the model was loaded
    from, which clients on this machine take the tokenizer from.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        words.close()

    app = FastAPI(title="Embedded inference engine", lifespan=lifespan)
    service = _Service(engine, words, tuple(served_names), root)

    @app.exception_handler(EngineError)
    async def in_openai_shape(_: Request, error: EngineError) -> Response:
        return _json(error_answer(error), error.status)

    @app.exception_handler(RequestValidationError)
    async def bad_query(_: Request, error: RequestValidationError) -> Response:
        return _json(error_answer(_first_fault(error.errors())), InvalidRequest.status)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return _json(await service.complete(request, await _body(request, CompletionRequest)))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return _json(await service.chat(request, await _body(request, ChatRequest)))

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(service.models())

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if engine.alive else 503)

    _add_control_routes(app, engine)
    return app


def _add_control_routes(app: FastAPI, engine: Engine) -> None:
    """Routes by which a trainer pauses the engine and changes its weights."""

    @app.post("/pause")
    async def pause(mode: PauseMode = "abort") -> Response:
        await asyncio.to_thread(engine.pause, mode)
        return _json({"status": "paused"})

    @app.post("/resume")
    async def resume() -> Response:
        engine.resume()
        return _json({"status": "resumed"})

    @app.get("/is_paused")
    async def is_paused() -> Response:
        return _json({"is_paused": engine.paused})

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        await asyncio.to_thread(engine.reset_prefix_cache)
        return Response(status_code=200)

    @app.post("/collective_rpc")
    async def collective_rpc(request: Request) -> Response:
        call = await _body(request, RpcRequest)
        await asyncio.to_thread(engine.reload_weights, Path(call.arguments.weights_path))
        return _json({"results": [None]})

    @app.post("/update_weight_version")
    async def update_weight_version(request: Request) -> Response:
        version = (await _body(request, VersionRequest)).new_version
        await asyncio.to_thread(engine.set_version, version)
        return _json({"success": True, "new_version": version})

    @app.get("/weight_info")
    async def weight_info() -> Response:
        return _json({"weight_version": engine.version, "logprobs_mode": engine.config.logprobs_mode})


class _Service:
    """What the two completion routes do."""

    def __init__(self, engine: Engine, words: Words, served_names: tuple[str, ...], root: str) -> None:
        self._engine = engine
        self._root = root
        self._words = words
        self._names = served_names
        self._created = int(time.time())

    async def complete(self, request: Request, asked: CompletionRequest) -> dict[str, Any]:
        model = self._served(asked.model)
        prompts = await self._words.run(self._prompts, asked)
        jobs = [
            (
                prompt,
                asked.params(
                    max_tokens=self._budget(prompt) if asked.max_tokens is None else asked.max_tokens,
                    top_logprobs=asked.logprobs or 0,
                    choice=choice,
                    skip_special_tokens=asked.skip_special_tokens,
                ),
            )
            for prompt in prompts
            for choice in range(asked.n)
        ]
        answered = await self._sample(request, jobs)
        return await self._words.run(completion_answer, self._words, asked, model, answered)

    async def chat(self, request: Request, asked: ChatRequest) -> dict[str, Any]:
        model = self._served(asked.model)
        prompt = await self._words.run(self._render, asked)
        wanted = asked.max_completion_tokens or asked.max_tokens
        jobs = [
            (
                prompt,
                asked.params(
                    max_tokens=self._budget(prompt) if wanted is None else wanted,
                    top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else 0,
                    choice=choice,
                    skip_special_tokens=asked.skip_special_tokens and not asked.parsed_tools,
                ),
            )
            for choice in range(asked.n)
        ]
        answered = await self._sample(request, jobs)
        return await self._words.run(chat_answer, self._words, asked, model, answered)

    def models(self) -> dict[str, Any]:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "trainer",
                "root": self._root,
                "parent": None,
                "max_model_len": self._engine.max_model_len,
            }
            for name in self._names
        ]
        return {"object": "list", "data": cards}

    def _served(self, name: str | None) -> str:
        if name and name not in self._names:
            raise UnknownModel(f"The model `{name}` does not exist. Served: {', '.join(self._names)}.", "model")
        return name or self._names[0]

    def _prompts(self, asked: CompletionRequest) -> list[list[int]]:
        prompt: Any = asked.prompt
        several = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
        return [self._words.encode(p, asked.add_special_tokens) if isinstance(p, str) else p for p in several]

    def _render(self, asked: ChatRequest) -> list[int]:
        return self._words.render(
            [message.model_dump() for message in asked.messages],
            asked.tools,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            template_kwargs=asked.chat_template_kwargs,
        )

    def _budget(self, prompt: list[int]) -> int:
        """All the room that a prompt leaves; one token at least: where it leaves none, it is refused as too long."""
        return max(1, self._engine.max_model_len - len(prompt))

    async def _sample(self, request: Request, jobs: list[tuple[list[int], SamplingParams]]) -> list[Answered]:
        """Sample every job, all at once; when the client goes away, all of them leave the batch."""
        futures: list[Future[Completion]] = []
        try:
            for prompt, params in jobs:
                futures.append(self._engine.submit(prompt, params))
            completions = await _unless_disconnected(request, futures)
        finally:
            for future in futures:
                future.cancel()
        return [Answered(prompt, completion) for (prompt, _), completion in zip(jobs, completions, strict=True)]


async def _unless_disconnected(request: Request, futures: list[Future[Completion]]) -> list[Completion]:
    """The results of ``futures``. Raises: ClientGone as soon as the connection is closed."""
    work: asyncio.Future[list[Completion]] = asyncio.gather(*map(asyncio.wrap_future, futures))
    gone: asyncio.Future[None] = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone("The client closed its connection.")
        return work.result()
    finally:
        work.add_done_callback(_retrieve)
        work.cancel()
        gone.cancel()


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Look at what became of work that nobody waits for any more, or else asyncio would complain that nobody did."""
    if not work.cancelled():
        work.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, model: type[_Model]) -> _Model:
    """The request's JSON body. Raises: InvalidRequest, saying which field is wrong."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"The request's body is larger than {_MAX_BODY_BYTES} bytes.")
    try:
        return model.model_validate(orjson.loads(bytes(received)))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request's body is not JSON: {error}") from error
    except ValidationError as error:
        raise _first_fault(error.errors(include_url=False)) from error


def _first_fault(faults: Sequence[Any]) -> InvalidRequest:
    where = ".".join(map(str, faults[0]["loc"]))
    return InvalidRequest(f"{where}: {faults[0]['msg']}" if where else faults[0]["msg"], where or None)


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")
