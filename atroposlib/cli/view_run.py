"""``view-run``: look at the groups of a run, on a page of this machine.

Where a trainer is registered, the page shows the group that came last and takes nothing. Where none is, the command
takes its place, so that environments begin to send, and each click takes the next batch. Nothing is reset.
"""

from __future__ import annotations

import asyncio
import html
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from atroposlib.cli.counts import positive
from atroposlib.cli.dataset_file import DEFAULT_TOKENIZER
from atroposlib.cli.group_source import GroupSource, Run, token_from
from atroposlib.cli.listening import listen, serve
from atroposlib.envs.tokenizers import load_tokenizer
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.flag_parser import FlagParser
from atroposlib.frontend.jsonl2html import create_html_for_group, render_page

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

_GROUPS_PER_BATCH = 8
_STEPS = 1_000_000
_ABOUT = "Look at the groups of a run, on a page of this machine."
_BUTTON = '<form method="post" action="/next"><button>{}</button></form>\n'


class Viewer:
    """What the page shows. ``tokenizer`` is the name of the one that decodes groups without messages."""

    def __init__(self, source: GroupSource, run: Run, tokenizer: str) -> None:
        self._source = source
        self._run = run
        self._tokenizer_name = tokenizer
        self._tokenizer: Any = None
        self._takes_batches: bool | None = None
        self._starting = asyncio.Lock()
        self._groups: list[Any] = []

    async def start(self) -> None:
        """Take the trainer's place if it is free. Done at the first look, so the server may come later."""
        async with self._starting:
            if self._takes_batches is not None:
                return
            free = not await self._source.is_taken()
            if free:
                await self._source.register(self._run)
                # environments may register once a batch was asked for
                self._groups = await self._source.next_batch() or []
            self._takes_batches = free

    async def advance(self) -> None:
        """Get the next groups to show; those shown stay where there are none."""
        await self.start()
        if self._takes_batches:
            self._groups = await self._source.next_batch() or self._groups
        else:
            latest = await self._source.latest()
            self._groups = [latest] if latest.get("tokens") else []

    async def page(self) -> str:
        """The page as it is now."""
        await self.start()
        status = await self._source.status()
        facts = f"<p>Step {status['current_step']}, {status['queue_size']} groups waiting.</p>\n"
        button = _BUTTON.format("Next batch" if self._takes_batches else "Latest group")
        shown = [create_html_for_group(self._readable(group), i, unfolded=True) for i, group in enumerate(self._groups)]
        return render_page("Groups of the run", facts + button + ("".join(shown) or "<p>Nothing to show yet.</p>\n"))

    def _readable(self, group: Any) -> Any:
        if group.get("messages"):
            return group
        try:
            self._tokenizer = self._tokenizer or load_tokenizer(self._tokenizer_name, "--tokenizer")
        except ConfigError as error:
            logger.warning("%s", error)
            return group
        return {**group, "messages": [self._tokenizer.decode(tokens) for tokens in group["tokens"]]}


def create_view(viewer: Viewer, source: GroupSource) -> FastAPI:
    """The page as an application."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, RedirectResponse

    from atroposlib.api.access import AccessControl

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with source:
            yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.add_middleware(AccessControl, token=None, allowed_origins=())

    @app.get("/")
    async def show() -> HTMLResponse:
        return HTMLResponse(await viewer.page())

    @app.post("/next")
    async def advance() -> RedirectResponse:
        await viewer.advance()
        return RedirectResponse("/", status_code=303)

    @app.exception_handler(AtroposError)
    async def explain(_: Any, error: Exception) -> HTMLResponse:
        return HTMLResponse(render_page("Groups of the run", f"<p>{html.escape(str(error))}</p>\n"), 502)

    return app


def main(argv: Sequence[str] | None = None, tokenizer: str = DEFAULT_TOKENIZER, prog: str = "view-run") -> None:
    """Serve the page until interrupted; exits with 2 where something is wrong."""
    parser = FlagParser(prog=prog, description=_ABOUT)
    parser.add_argument("--port", type=int, default=9001, help="port of the page, on this machine only")
    parser.add_argument("--api-url", default="http://localhost:8000", help="the trajectory server")
    parser.add_argument("--api-token-env", metavar="NAME", help="environment variable that holds the server's token")
    parser.add_argument("--group-size", type=positive, default=2, help="sequences of a group")
    parser.add_argument("--max-token-len", type=positive, default=2048, help="longest sequence")
    parser.add_argument("--tokenizer", default=tokenizer, help="decodes groups without messages (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        source = GroupSource(arguments.api_url, token_from(arguments.api_token_env))
        listener = listen("127.0.0.1", arguments.port)
    except ConfigError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        sys.exit(2)
    run = Run("view-run", arguments.group_size, _GROUPS_PER_BATCH, arguments.max_token_len, _STEPS)
    try:
        app = create_view(Viewer(source, run, arguments.tokenizer), source)
        serve(app, listener, log_level="warning")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
