"""The binaries of the runner are of their architecture, and the two sides of its protocol agree."""

from __future__ import annotations

import re
import struct

import pytest

from sandboxes import frames
from sandboxes.runner import RUNNER, runner_path

PROTOCOL = (RUNNER.folder / "src" / "protocol.h").read_text()
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}


@pytest.mark.parametrize(("architecture", "number"), MACHINES.items())
def test_a_binary_is_small_static_and_of_its_architecture(architecture: str, number: int):
    content = runner_path(architecture).read_bytes()
    assert len(content) < 120_000
    assert content[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<H", content, 18)[0] == number
    assert b"ld-musl" not in content
    assert runner_path(architecture).stat().st_mode & 0o111


def constants() -> dict[str, int]:
    """Names to values of the enums of protocol.h."""
    text = re.sub(r"/\*.*?\*/", "", PROTOCOL, flags=re.DOTALL)
    found: dict[str, int] = {}
    for body in re.findall(r"enum(?: kind)? \{(.*?)\}", text, flags=re.DOTALL):
        value = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, given = entry.partition("=")
            value = evaluate(given) if given else value + 1
            found[name.strip()] = value
    return found


def evaluate(expression: str) -> int:
    number, _, shift = expression.partition("<<")
    return int(number) << int(shift or 0)


def test_both_sides_number_frames_and_flags_alike():
    found = constants()
    assert {kind.name: kind.value for kind in frames.Kind} == {name: found[name] for name in frames.Kind.__members__}
    flags = {f"RUN_{flag.name}": flag.value for flag in frames.Run}
    assert flags == {name: value for name, value in found.items() if name.startswith("RUN_")}


def test_both_sides_have_the_same_limits():
    found = constants()
    for name in ("PROTOCOL_VERSION", "FRAME_LIMIT", "CHUNK", "INPUT_WINDOW"):
        assert getattr(frames, name) == found[name]
