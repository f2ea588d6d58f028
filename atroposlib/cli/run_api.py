"""``run-api``: serve the trajectory API.

Only this machine can reach it unless ``--host`` says otherwise; then give it a token. With ``--store`` the queue
survives the process.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.cli.counts import positive
from atroposlib.cli.listening import listen, serve
from atroposlib.errors import ConfigError, StoreError
from atroposlib.flag_parser import FlagParser

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = FlagParser(prog="run-api", description="Serve the trajectory API.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--store", type=Path, metavar="PATH", help="file in which the queue survives the server")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="ask every client for 'Authorization: Bearer TOKEN'")
    token.add_argument("--token-file", type=Path, metavar="PATH", help="the same, read from a file")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web page's origin that may use the server from a browser; may be repeated",
    )
    parser.add_argument("--max-body-mb", type=positive, default=256, help="largest request, packed or unpacked")
    parser.add_argument("--max-queue-mb", type=positive, default=2048, help="how much may wait for the trainer")
    parser.add_argument(
        "--env-expiry", type=float, default=60.0, metavar="SECONDS", help="environments not seen for so long are dead"
    )
    parser.add_argument("--reload", action="store_true", help="restart on changes of the code (development)")
    return parser.parse_args(argv)


def make_app(arguments: argparse.Namespace) -> FastAPI:
    """Make the server that the arguments describe. Raises: ConfigError, StoreError."""
    from atroposlib.api.server import ServerLimits, create_app
    from atroposlib.api.waiting_groups import QueueLimits

    limits = ServerLimits(
        body_bytes=arguments.max_body_mb * 1024**2,
        queue=QueueLimits(bytes=arguments.max_queue_mb * 1024**2),
        env_expiry_s=arguments.env_expiry,
    )
    return create_app(
        store=arguments.store, token=_token(arguments), allowed_origins=arguments.allow_origin, limits=limits
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted; exits with 2 where the arguments, the address or the store are wrong.

    Exits with 130 where it is interrupted before it serves.
    """
    arguments = parse_arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        with closing(listen(arguments.host, arguments.port)) as listener:
            _serve(arguments, listener)
    except (ConfigError, StoreError) as error:
        sys.exit(_complain(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    if arguments.reload:
        _check_reloadable(arguments)
        listener.close()
        import uvicorn

        uvicorn.run("atroposlib.api.server:app", host=arguments.host, port=arguments.port, reload=True)
        return
    app = make_app(arguments)
    if arguments.host not in _LOOPBACK and _token(arguments) is None:
        logger.warning("anyone who can reach %s:%d may change this run; see --token", arguments.host, arguments.port)
    serve(app, listener)


def _token(arguments: argparse.Namespace) -> str | None:
    if arguments.token_file is None:
        token: str | None = arguments.token
    else:
        try:
            token = arguments.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"--token-file: {error}") from error
    if token == "":
        raise ConfigError("--token: is empty; leave it out to run without one")
    return token


def _check_reloadable(arguments: argparse.Namespace) -> None:
    if arguments.store or arguments.token or arguments.token_file:
        raise ConfigError("--reload starts the server anew at each change, without --store and --token; leave one out")


def _complain(error: Exception) -> int:
    sys.stderr.write(f"run-api: {error}\n")
    return 2


if __name__ == "__main__":
    main()
