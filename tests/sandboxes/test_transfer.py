"""Trees as streams: what a hostile box may send, and how it is cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxes.errors import OutputLimitExceeded, SandboxFileError
from sandboxes.transfer import Record, TreeReader, TreeWriter, stays_inside

END = Record(b"e", 0, 0, "").encode()
ROOT = Record(b"d", 0o755, 0, "").encode()


def folder(path: str) -> bytes:
    return Record(b"d", 0o755, 0, path).encode()


def file(path: str, content: bytes = b"content") -> bytes:
    return Record(b"f", 0o644, len(content), path).encode() + content


def link(path: str, target: str) -> bytes:
    return Record(b"l", 0o777, len(target), path).encode() + target.encode()


def write(target: Path, *parts: bytes, limit: int = 10**6, step: int | None = None) -> TreeWriter:
    writer = TreeWriter(target, limit=limit)
    stream = b"".join([ROOT, *parts, END])
    try:
        for start in range(0, len(stream), step or len(stream)):
            writer.feed(stream[start : start + (step or len(stream))])
        writer.finish()
    finally:
        writer.close()
    return writer


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "target"


def outside(target: Path) -> list[str]:
    return os.listdir(target.parent / "outside")


@pytest.mark.parametrize("path", ["../outside/x", "/etc/x", "a/../../outside/x", "a//x", "./x", "a/", "."])
def test_a_path_that_leads_out_is_refused(target: Path, path: str):
    with pytest.raises(SandboxFileError, match="not a tree"):
        write(target, folder("a"), file(path))
    assert outside(target) == []


def test_a_file_is_not_written_through_a_link_that_came_before_it(target: Path):
    with pytest.raises((SandboxFileError, OSError)):
        write(target, link("a", "../outside"), file("a/x"))
    assert outside(target) == []


def test_a_file_is_not_written_through_a_link_that_lies_in_the_target(target: Path):
    target.mkdir()
    (target / "a").symlink_to("../outside")
    (target / "b").symlink_to("../outside/b")
    with pytest.raises(OSError, match="a"):
        write(target, file("a/x"))
    with pytest.raises(OSError, match="a"):
        write(target, folder("a"))
    write(target, file("b"))
    assert outside(target) == []
    assert (target / "b").read_bytes() == b"content"
    assert not (target / "b").is_symlink()


@pytest.mark.parametrize(
    "links",
    [
        [("a", "/etc")],
        [("a", "..")],
        [("a", "../outside")],
        [("self", "."), ("a", "self/../../outside")],
        [("a", "b"), ("b", "../outside")],
        [("a", "c/../.."), ("c", "sub/deep")],
    ],
)
def test_links_that_lead_out_are_left_out(target: Path, links: list[tuple[str, str]]):
    write(target, folder("sub"), folder("sub/deep"), *[link(path, to) for path, to in links])
    root = os.path.realpath(target)
    for path in target.rglob("*"):
        assert os.path.realpath(path).startswith(root)


def test_links_that_stay_inside_are_kept(target: Path):
    assert write(target, folder("a"), link("a/up", "../file"), link("dangling", "a/none"), file("file")).files == 3
    assert (target / "a" / "up").read_bytes() == b"content"
    assert os.readlink(target / "dangling") == "a/none"


@pytest.mark.parametrize("kind", [b"c", b"p", b"\0"])
def test_other_kinds_of_entries_are_refused(target: Path, kind: bytes):
    with pytest.raises(SandboxFileError):
        write(target, Record(kind, 0, 0, "x").encode())


def test_a_stream_that_ends_early_is_refused(target: Path):
    writer = TreeWriter(target, limit=1000)
    writer.feed(ROOT + file("x")[:-1])
    with pytest.raises(SandboxFileError, match="ended early"):
        writer.finish()
    writer.close()


def test_a_size_above_the_limit_is_refused_before_it_is_written(target: Path):
    with pytest.raises(OutputLimitExceeded):
        write(target, Record(b"f", 0o644, 1 << 60, "x").encode(), limit=1000)
    assert list(target.iterdir()) == []


def test_set_user_id_bits_do_not_come_out(target: Path):
    write(target, Record(b"f", 0o4755, 0, "x").encode())
    assert (target / "x").stat().st_mode & 0o7777 == 0o755


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(content=st.binary(max_size=2000), step=st.integers(1, 500))
def test_the_stream_may_be_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, content: bytes, step: int):
    target = tmp_path_factory.mktemp("cut") / "target"
    write(target, folder("a"), file("a/x", content), link("l", "a/x"), file("empty", b""), step=step)
    assert (target / "l").read_bytes() == content
    assert (target / "empty").read_bytes() == b""


def test_what_is_read_can_be_written(tmp_path: Path):
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / "big").write_bytes(bytes(range(256)) * 4000)
    (source / "l").symlink_to("a/big")
    os.mkfifo(source / "pipe")
    reader = TreeReader(source)
    writer = TreeWriter(tmp_path / "target", limit=10**7)
    writer.feed(ROOT)
    for piece in reader.pieces():
        writer.feed(piece)
    writer.finish()
    assert (reader.files, writer.files) == (2, 2)
    assert (tmp_path / "target" / "l").read_bytes() == (source / "a" / "big").read_bytes()
    assert not (tmp_path / "target" / "pipe").exists()


@pytest.mark.parametrize(
    ("path", "to", "inside"),
    [
        ("a", "b", True),
        ("a/b", "../c", True),
        ("a/b", "../../c", False),
        ("a", "/b", False),
        ("a", "..", False),
        ("a", "..b", True),
    ],
)
def test_whether_a_link_stays_inside_is_read_off_its_text(path: str, to: str, inside: bool):
    assert stays_inside(path, to) is inside
