"""The committed binaries of the runner, and that the two sides of its protocol agree."""

from __future__ import annotations

import importlib.metadata
import re
import struct
from pathlib import Path

import pytest

from sandboxes import frames
from sandboxes.errors import SandboxUnavailable
from sandboxes.runner import BINARIES, build, runner_path

PROTOCOL = (Path(build.__file__).parent / "src" / "protocol.h").read_text()
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}


@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_a_binary_is_what_its_checksum_says(architecture: str):
    path = runner_path(architecture)
    assert build.checksum(path) == build.read_checksums()[path.name]


def test_the_binaries_were_built_from_the_sources_that_are_here():
    assert build.read_checksums()["sources"] == build.source_checksum(), "run python -m sandboxes.runner.build"


@pytest.mark.parametrize(("architecture", "number"), MACHINES.items())
def test_a_binary_is_small_static_and_of_its_architecture(architecture: str, number: int):
    content = runner_path(architecture).read_bytes()
    assert len(content) < 120_000
    assert content[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<H", content, 18)[0] == number
    assert b"ld-musl" not in content
    assert runner_path(architecture).stat().st_mode & 0o111


@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_a_binary_holds_no_path_of_the_machine_that_built_it(architecture: str):
    content = runner_path(architecture).read_bytes()
    assert str(Path(build.__file__).parent.parent).encode() not in content
    assert str(Path.home()).encode() + b"/" not in content


@pytest.mark.parametrize(("name", "expected"), [("amd64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64")])
def test_other_names_of_an_architecture_are_known(name: str, expected: str):
    assert runner_path(name) == BINARIES / f"runner-{expected}"


def test_an_architecture_without_a_binary_is_refused_with_the_list():
    with pytest.raises(SandboxUnavailable, match=r"'riscv64' \(there are: aarch64, x86_64\)"):
        runner_path("riscv64")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_building_again_gives_the_same_bytes(architecture: str, tmp_path: Path):
    try:
        installed = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the compiler is not installed (pip install ziglang)")
    if installed != build.ZIGLANG:
        pytest.skip(f"the binaries are built with ziglang {build.ZIGLANG}, installed is {installed}")
    build.build(architecture, tmp_path / "runner")
    assert (tmp_path / "runner").read_bytes() == runner_path(architecture).read_bytes()


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
