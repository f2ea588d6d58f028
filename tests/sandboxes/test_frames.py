"""Frames: what is written is what is read, however the stream cuts it."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.frames import (
    FRAME_LIMIT,
    PROTOCOL_VERSION,
    Command,
    Frame,
    FrameBuffer,
    Kind,
    ProtocolError,
    Run,
    decode_done,
    decode_hello,
)

FRAMES = st.lists(
    st.builds(Frame, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=20
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(FRAMES, st.lists(st.integers(0, 50), max_size=50))
def test_frames_come_out_whole_and_in_order_however_the_stream_is_cut(frames: list[Frame], sizes: list[int]):
    buffer = FrameBuffer()
    data = b"".join(frame.encode() for frame in frames)
    assert [frame for piece in cut(data, sizes) for frame in buffer.feed(piece)] == frames


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes):
    try:
        frames = list(FrameBuffer().feed(data))
    except ProtocolError:
        return
    assert b"".join(frame.encode() for frame in frames) == data[: sum(9 + len(frame.payload) for frame in frames)]


def test_a_frame_above_the_limit_is_refused_before_its_bytes_arrive():
    with pytest.raises(ProtocolError, match="more than"):
        list(FrameBuffer().feed(struct.pack("<IIB", FRAME_LIMIT + 1, 1, Kind.OUT)))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ProtocolError, match="unknown kind 99"):
        list(FrameBuffer().feed(struct.pack("<IIB", 0, 1, 99)))


def test_a_runner_of_another_version_is_refused():
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}"):
        decode_hello(struct.pack("<III", PROTOCOL_VERSION + 1, 1, 0))


def test_a_short_end_is_refused():
    with pytest.raises(ProtocolError, match="3 bytes"):
        decode_done(b"abc")


def fields(payload: bytes) -> list[tuple[str, bytes]]:
    found = []
    while payload:
        tag, size = struct.unpack_from("<cI", payload)
        found.append((tag.decode(), payload[5 : 5 + size]))
        payload = payload[5 + size :]
    return found


TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30)


@given(st.lists(TEXT, min_size=1, max_size=5), st.dictionaries(TEXT, TEXT, max_size=5))
def test_a_command_carries_its_arguments_and_environment_unchanged(arguments: list[str], environment: dict[str, str]):
    found = fields(Command(tuple(arguments), environment=environment).encode())
    assert [value.decode() for tag, value in found if tag == "a"] == arguments
    assert [value.decode() for tag, value in found if tag == "e"] == [f"{k}={v}" for k, v in environment.items()]


def test_a_command_carries_its_limits():
    found = dict(fields(Command(("x",), Run.SHELL | Run.MERGE, time_limit_s=1.5, head=7, tail=9).encode()))
    assert {tag: struct.unpack("<I", found[tag])[0] for tag in "fthl"} == {"f": 5, "t": 1500, "h": 7, "l": 9}


def test_a_tiny_time_limit_is_not_taken_for_none():
    assert dict(fields(Command(("x",), time_limit_s=1e-9).encode()))["t"] == struct.pack("<I", 1)


def test_limits_beyond_what_the_wire_carries_are_the_largest_and_the_least():
    found = dict(fields(Command(("x",), time_limit_s=math.inf, head=10**12, tail=-1).encode()))
    assert {tag: struct.unpack("<I", found[tag])[0] for tag in "thl"} == {"t": 2**32 - 1, "h": 2**32 - 1, "l": 0}


def test_a_nul_is_refused_with_the_text_that_holds_it():
    with pytest.raises(ValueError, match="echo"):
        Command(("echo \0",)).encode()


def test_a_command_too_long_for_a_frame_is_refused():
    with pytest.raises(ValueError, match="more than"):
        Command(("x" * (FRAME_LIMIT + 1),)).encode()
