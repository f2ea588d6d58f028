"""gzip, bounded."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib import gzip_codec
from atroposlib.gzip_codec import BadGzip, GzipTooLarge, gunzip, gzip_compress


@pytest.fixture(params=["as installed", "zlib alone"], autouse=True)
def codec(request, monkeypatch):
    if request.param == "zlib alone":
        monkeypatch.setattr(gzip_codec, "_codec", zlib)


@given(st.binary(max_size=2000))
def test_what_was_packed_comes_back(data):
    assert gunzip(gzip_compress(data), len(data)) == gzip.decompress(gzip_compress(data)) == data
    assert gunzip(gzip.compress(data) + gzip.compress(data), 2 * len(data)) == 2 * data


def test_nothing_is_nothing():
    assert gunzip(b"", 0) == b""


@pytest.mark.parametrize("members", [1, 2])
def test_a_limit_is_kept_whatever_comes_out(members):
    packed = gzip.compress(b" " * 1000) * members
    assert len(gunzip(packed, 1000 * members)) == 1000 * members
    with pytest.raises(GzipTooLarge, match="more than"):
        gunzip(packed, 1000 * members - 1)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_damage_is_found(data, draw):
    packed = bytearray(gzip_compress(data))
    with pytest.raises(BadGzip):
        gunzip(bytes(packed[: draw.draw(st.integers(1, len(packed) - 1))]), 10_000)
    packed[-8] ^= 1  # of the checksum
    with pytest.raises(BadGzip):
        gunzip(bytes(packed), 10_000)


@pytest.mark.parametrize("packed", [b"text", b"\x1f\x8b", gzip_compress(b"a") + b"rest"])
def test_what_is_no_gzip_is_refused(packed):
    with pytest.raises(BadGzip):
        gunzip(packed, 1000)
