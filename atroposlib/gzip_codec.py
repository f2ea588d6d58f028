"""gzip over ISA-L, several times faster than zlib; over zlib where ``isal`` is not installed."""

from __future__ import annotations

import zlib
from typing import Any, Final

_GZIP_WINDOW: Final = 31  # 15 bits of window, and a gzip header around it


def _load_codec() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:  # there are no wheels for some machines
        return zlib
    return isal_zlib


_codec = _load_codec()


class BadGzip(ValueError):
    """Not gzip, damaged, or cut short."""


class GzipTooLarge(ValueError):
    """More comes out than is allowed."""


def gzip_compress(data: bytes) -> bytes:
    """Pack quickly rather than small."""
    packed: bytes = _codec.compress(data, 1, _GZIP_WINDOW)
    return packed


def gunzip(packed: bytes, limit: int) -> bytes:
    """Unpack gzip of one or several members; nothing, of nothing. Never holds much more than ``limit`` bytes.

    Raises: BadGzip, GzipTooLarge.
    """
    parts: list[bytes] = []
    size = 0
    while packed:
        member = _codec.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(packed, limit - size + 1)
        except (_codec.error, zlib.error) as error:
            raise BadGzip(str(error)) from error
        size += len(part)
        if size > limit:
            raise GzipTooLarge(f"unpacks to more than {limit} bytes")
        if not member.eof:
            raise BadGzip("incomplete gzip stream")
        parts.append(part)
        packed = member.unused_data
    return b"".join(parts)
