"""The address of an engine. It is taken before a model is loaded into it, and needs none of what that takes."""

from __future__ import annotations

import socket

from trainer.errors import UsageError

_BACKLOG = 2048
"""Connections that wait in the kernel; those made before the server runs are among them."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises: UsageError, where the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio sees to this only on listeners of its own; without it an answer waits 40 ms for an acknowledgement
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"The engine cannot listen on {host}:{port} ({error.strerror or error}); "
            "end what listens there, or choose another address with --host and --port."
        ) from error
    return bound
