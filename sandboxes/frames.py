"""The frames that a client and the runner exchange; ``runner/src/protocol.h`` says what each means.

Pure: bytes to values and back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

PROTOCOL_VERSION = 3
FRAME_LIMIT = 4 << 20
CHUNK = 64 << 10
INPUT_WINDOW = 256 << 10

_MOST = 0xFFFFFFFF
_HEADER = struct.Struct("<IIB")
_FIELD = struct.Struct("<cI")
_U32 = struct.Struct("<I")
_CORES = struct.Struct("<II")
_HELLO = struct.Struct("<III")
_DONE = struct.Struct("<iIQQQQQ")


class Kind(IntEnum):
    """What a frame says."""

    RUN = 1
    INPUT = 2
    INPUT_END = 3
    KILL = 4
    PEEK = 5
    KILL_ALL = 6
    CREDIT = 7
    CORES = 8
    FILTER = 9
    HELLO = 16
    OUT = 17
    ERR = 18
    DONE = 19


class Run(IntFlag):
    """How a command runs."""

    PLAIN = 0
    SHELL = 1
    FILE = 2
    MERGE = 4
    STREAM = 8
    INPUT = 16
    STATE = 32


class ProtocolError(ValueError):
    """The other side does not speak this protocol."""


@dataclass(frozen=True)
class Frame:
    """One message of the wire."""

    kind: Kind
    id: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Header and payload."""
        return _HEADER.pack(len(self.payload), self.id, self.kind) + self.payload


@dataclass(frozen=True)
class Hello:
    """What the runner says of itself when it is ready."""

    version: int
    pid: int
    uid: int


@dataclass(frozen=True)
class Done:
    """How a request ended. ``cut_at`` is where ``omitted`` bytes are missing in what was sent of that stream."""

    status: int
    timed_out: bool
    running: bool
    unknown: bool
    duration_s: float
    out_omitted: int
    out_cut_at: int
    err_omitted: int
    err_cut_at: int


@dataclass(frozen=True)
class Command:
    """A command for the runner, or a file operation of its own (``Run.FILE``).

    ``head`` and ``tail`` are the bytes to keep of each stream; ``user`` None is the user of the runner.
    """

    arguments: tuple[str, ...]
    flags: Run = Run.PLAIN
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    user: str | None = None
    time_limit_s: float | None = None
    head: int = 32768
    tail: int = 32768

    def encode(self) -> bytes:
        """The payload of RUN.

        Raises: ValueError where a text holds a NUL, or all of it is too long for a frame.
        """
        fields = [_text_field(b"a", text) for text in self.arguments]
        fields += [_text_field(b"e", f"{name}={value}") for name, value in self.environment.items()]
        if self.folder is not None:
            fields.append(_text_field(b"d", self.folder))
        if self.user is not None:
            fields.append(_text_field(b"u", self.user))
        milliseconds = 0 if self.time_limit_s is None else round(min(max(1, self.time_limit_s * 1000), _MOST))
        numbers = {b"f": int(self.flags), b"t": milliseconds, b"h": self.head, b"l": self.tail}
        fields += [_field(tag, _U32.pack(min(max(0, number), _MOST))) for tag, number in numbers.items()]
        payload = b"".join(fields)
        if len(payload) > FRAME_LIMIT:
            raise ValueError(f"the command and its environment take {len(payload)} bytes, more than {FRAME_LIMIT}")
        return payload


def _field(tag: bytes, value: bytes) -> bytes:
    return _FIELD.pack(tag, len(value)) + value


def _text_field(tag: bytes, text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"a NUL character in {text[:80]!r}: no command, path or environment variable can hold one")
    return _field(tag, text.encode("utf-8", "surrogateescape"))


def encode_u32(number: int) -> bytes:
    """The payload of CREDIT and PEEK."""
    return _U32.pack(number)


def encode_cores(count: int, first: int) -> bytes:
    """The payload of CORES."""
    return _CORES.pack(count, first)


def decode_u32(payload: bytes) -> int:
    """Raises: ProtocolError."""
    return int(_unpack(_U32, payload)[0])


def decode_hello(payload: bytes) -> Hello:
    """Raises: ProtocolError, also for a runner of another version."""
    hello = Hello(*_unpack(_HELLO, payload))
    if hello.version != PROTOCOL_VERSION:
        raise ProtocolError(f"the runner speaks version {hello.version}, this is version {PROTOCOL_VERSION}")
    return hello


def decode_done(payload: bytes) -> Done:
    """Raises: ProtocolError."""
    status, flags, microseconds, out_omitted, out_cut_at, err_omitted, err_cut_at = _unpack(_DONE, payload)
    return Done(
        status=status,
        timed_out=bool(flags & 1),
        running=bool(flags & 2),
        unknown=bool(flags & 4),
        duration_s=microseconds / 1e6,
        out_omitted=out_omitted,
        out_cut_at=out_cut_at,
        err_omitted=err_omitted,
        err_cut_at=err_cut_at,
    )


def _unpack(shape: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != shape.size:
        raise ProtocolError(f"a payload of {len(payload)} bytes where {shape.size} belong")
    return shape.unpack(payload)


class FrameBuffer:
    """Bytes as they arrive, frames as they are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that ``data`` completes.

        Raises: ProtocolError.
        """
        self._bytes += data
        start = 0
        try:
            while len(self._bytes) - start >= _HEADER.size:
                length, frame_id, kind = _HEADER.unpack_from(self._bytes, start)
                end = start + _HEADER.size + length
                _check(length, kind)
                if len(self._bytes) < end:
                    break
                yield Frame(Kind(kind), frame_id, bytes(self._bytes[start + _HEADER.size : end]))
                start = end
        finally:
            del self._bytes[:start]


def _check(length: int, kind: int) -> None:
    if length > FRAME_LIMIT:
        raise ProtocolError(f"a frame of {length} bytes, more than {FRAME_LIMIT}")
    if kind not in Kind._value2member_map_:
        raise ProtocolError(f"a frame of the unknown kind {kind}")
