"""The routes of a capture proxy: each is one call on a session.

Errors are answered as OpenAI's API words them: ``{"error": {"message", "type", "code"}}``, and
``param`` where one field of the request is to blame.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from atroposlib.envs.server_handling.capture_answers import Failure, JsonResponse, ReportingResponse, failure_of, plain
from atroposlib.envs.server_handling.capture_bodies import Wanted, read_chat, read_session, read_text
from atroposlib.envs.server_handling.capture_fields import WrongField
from atroposlib.envs.server_handling.capture_session import Answer, CaptureSession, CaptureSessions, UnknownSession
from atroposlib.envs.server_handling.capture_stream import EventStream, events_of, text_events_of
from atroposlib.envs.server_handling.off_loop import off_loop
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.errors import AtroposError
from atroposlib.tool_call_parsers import get_parser

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024 * 1024
HEAD_WITHIN_S = 0.2
"""Seconds after which a stream gets its head. What fails before, as an overlong conversation does, has a status."""
RETRY_COUNT = "x-stainless-retry-count"
"""Header in which OpenAI's clients number the repetitions of a request."""


class _Refused(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class CaptureProxy:
    """The routes; each is one call on a session."""

    def __init__(
        self, manager: ServerManager, tokenizer: Any, model_name: str, token: str | None, sessions: CaptureSessions
    ) -> None:
        self.manager = manager
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.sessions = sessions
        self._token = token

    def routes(self) -> list[BaseRoute]:
        """Paths, methods and what answers them."""
        routes = [
            ("GET", "/health", self.health),
            ("GET", "/v1/models", self.models),
            ("POST", "/setup", self.setup),
            ("GET", "/servers", self.servers),
            ("POST", "/sessions/create", self.create),
            ("GET", "/sessions", self.list_sessions),
            ("GET", "/{uuid}/v1/models", self.models),
            ("POST", "/{uuid}/v1/chat/completions", self.chat),
            ("POST", "/{uuid}/v1/chat/completions/render", self.render),
            ("POST", "/{uuid}/v1/completions", self.complete),
            ("GET", "/{uuid}/nodes", self.nodes),
            ("DELETE", "/{uuid}", self.delete),
        ]
        return [Route(path, partial(_answered, endpoint), methods=[method]) for method, path, endpoint in routes]

    # the proxy itself

    async def health(self, request: Request) -> Any:
        return {"status": "ok", "sessions": len(self.sessions)}

    async def models(self, request: Request) -> Any:
        return {"object": "list", "data": [{"id": self.model_name, "object": "model", "owned_by": "capture-proxy"}]}

    async def setup(self, request: Request) -> Any:
        self._require_token(request)
        await self.manager.wait_until_ready()
        facts = await self.manager.probe()
        return {
            "status": "ok",
            "model": facts.model_name,
            "token_exact": facts.token_exact,
            "reason": facts.reason,
            "max_model_len": facts.max_model_len,
        }

    async def servers(self, request: Request) -> Any:
        self._require_token(request)
        listed = [
            {
                "base_url": server.config.base_url,
                "model_name": server.config.model_name,
                "server_type": server.config.server_type,
                "healthy": server.server_healthy,
            }
            for server in self.manager.servers
        ]
        return {"servers": listed}

    async def create(self, request: Request) -> Any:
        self._require_token(request)
        wanted = read_session(await _body(request))
        parser = None if wanted.tool_parser is None else _parser(wanted.tool_parser)
        managed = await self.manager.open_rollout(
            self.tokenizer,
            wanted.base_url,
            wanted.preserve_think_blocks,
            parser,
            wanted.max_rollout_tokens,
        )
        managed.track_tree = wanted.track_tree
        session = CaptureSession(managed, wanted.tool_parser, wanted.base_url, self.sessions.expires_after_s)
        await self.sessions.add(session)
        return _described(session) | {"secret": session.secret}

    async def list_sessions(self, request: Request) -> Any:
        self._require_token(request)
        await self.sessions.drop_expired()
        return {"sessions": [_described(session) for session in self.sessions]}

    # one session

    async def chat(self, request: Request) -> Any:
        session = await self._session(request)
        wanted = await _chat(session, request)
        work = partial(_converse, session, wanted.arguments)
        answer = session.ask(wanted.key, _first_try(request), work, wanted.wishes)
        return await _reply(request, answer, wanted, events_of)

    async def complete(self, request: Request) -> Any:
        session, body = await self._session(request), await _body(request)
        vocabulary = TokenText(session.managed.tokenizer).vocabulary
        wanted = await off_loop(len(body), read_text, body, vocabulary)
        work = partial(_continue_text, session, wanted.arguments)
        answer = session.ask(wanted.key, _first_try(request), work)
        return await _reply(request, answer, wanted, text_events_of)

    async def render(self, request: Request) -> Any:
        session = await self._session(request)
        text, ids = await session.managed.render(**(await _chat(session, request)).arguments)
        return {"prompt": text, "prompt_token_ids": ids}

    async def nodes(self, request: Request) -> Any:
        session = await self._session(request)
        session.touch()
        managed = session.managed
        told = {
            "uuid": session.uuid,
            "rollout_id": managed.rollout_id,
            "forks": dict(managed.forks),
            "failures": [f"{type(error).__name__}: {error}" for error in session.failures.values()],
            "not_enforced": dict(session.not_enforced),
            "in_flight": session.in_flight,
        }
        nodes = managed.current_nodes
        certified = [_certified(node, managed.certificate(node)) for node in nodes]
        if not managed.track_tree:
            return told | {"nodes": certified}
        sequences = {text: _certified(node, managed.certificate(node)) for text, node in managed.sequences.items()}
        return told | {"nodes": certified, "sequences": sequences, "tree": sequences}

    async def delete(self, request: Request) -> Any:
        session = await self._session(request)
        await self.sessions.remove(session)
        return {"status": "deleted", "uuid": session.uuid}

    # who may

    def _require_token(self, request: Request) -> None:
        """The proxy's own routes: for whoever has its token, or for this machine where it has none."""
        if self._token is None or secrets.compare_digest(_bearer(request).encode(), self._token.encode()):
            return
        raise _Refused(Failure(401, "this route needs the proxy's token", "authentication_error", "no_token"))

    async def _session(self, request: Request) -> CaptureSession:
        session = await self.sessions.find(request.path_params["uuid"])
        if not session.knows_secret(_bearer(request)):
            message = "the API key has to be the secret of this session, as /sessions/create told it"
            raise _Refused(Failure(401, message, "authentication_error", "invalid_api_key"))
        return session


async def _answered(endpoint: Any, request: Request) -> Response:
    """The boundary of one request: whatever is raised becomes an answer."""
    if "origin" in request.headers:
        return Failure(403, "web pages may not use this proxy", "permission_error", "origin").response()
    try:
        told = await endpoint(request)
    except _Refused as refused:
        return refused.failure.response()
    except ClientDisconnect:
        return Response(status_code=400)  # to nobody
    except Exception as error:  # noqa: BLE001 the boundary of one request
        return _told(request, error).response()
    return told if isinstance(told, Response) else JsonResponse(told)


def _told(request: Request, error: Exception) -> Failure:
    """What the client is told of an error; the log is told as well."""
    if isinstance(error, AtroposError):
        logger.warning("%s %s: %s", request.method, request.url.path, error)
    else:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return failure_of(error)


async def _converse(session: CaptureSession, asked: dict[str, Any]) -> Any:
    arguments = {**session.defaults, **asked}
    messages = arguments["messages"]
    answer = await session.managed.chat_completion(**arguments)
    session.conversation = [*messages, plain(answer.choices[0].message)]
    return answer


async def _continue_text(session: CaptureSession, asked: dict[str, Any]) -> Any:
    return await session.managed.completion(**{**session.defaults, **asked})


async def _reply(request: Request, answer: Answer, asked: Wanted, events: Any) -> Response:
    def delivered() -> None:
        answer.delivered = True

    def failed(error: Exception) -> Any:
        return _told(request, error).body

    if not asked.stream:
        return ReportingResponse(await _outcome(answer), delivered)
    await asyncio.wait({answer.task}, timeout=HEAD_WITHIN_S)
    if answer.task.done():
        await _outcome(answer)  # raises what it came to
    as_events = partial(events, with_usage=asked.with_usage)
    return EventStream(answer.task, partial(_outcome, answer), as_events, failed, delivered)


async def _outcome(answer: Answer) -> dict[str, Any]:
    """What the request came to, whoever asked first; a client that hangs up does not end it for others."""
    try:
        return plain(await asyncio.shield(answer.task))
    except asyncio.CancelledError:
        if answer.task.cancelled():
            raise UnknownSession("the session was deleted meanwhile") from None
        raise


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_BODY_BYTES:
            message = f"the request is longer than {MAX_BODY_BYTES} bytes"
            raise _Refused(Failure(413, message, "invalid_request_error", "too_large"))
    return bytes(content)


async def _chat(session: CaptureSession, request: Request) -> Wanted:
    body = await _body(request)
    return await off_loop(len(body), read_chat, body, _template_of(session))


def _template_of(session: CaptureSession) -> str:
    return str(getattr(session.managed.tokenizer, "chat_template", None) or "")


def _parser(name: str) -> str:
    try:
        get_parser(name)
    except KeyError as error:
        raise WrongField("tool_parser", error.args[0]) from error
    return name


def _first_try(request: Request) -> bool:
    return request.headers.get(RETRY_COUNT) == "0"


def _bearer(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _described(session: CaptureSession) -> dict[str, Any]:
    return {
        "uuid": session.uuid,
        "tool_parser": session.tool_parser,
        "track_tree": session.managed.track_tree,
        "base_url": session.base_url,
        "created_at": session.created_at,
        "expires_after_s": session.expires_after_s,
        "requests": session.requests,
    }


def _certified(node: Any, certificate: Any) -> dict[str, Any]:
    told: dict[str, Any] = node.model_dump()
    return {**told, "metadata": {**(told["metadata"] or {}), "certificate": certificate}}
