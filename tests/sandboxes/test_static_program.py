"""The committed binaries of the programs that go into boxes: the runner and the relay."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from sandboxes.errors import SandboxUnavailable
from sandboxes.relay.binary import RELAY
from sandboxes.runner import RUNNER
from sandboxes.static_program import ARCHITECTURES, ZIGLANG, StaticProgram, checksum

each_program = pytest.mark.parametrize("program", [RUNNER, RELAY], ids=lambda program: program.name)
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@each_program
@each_architecture
def test_a_binary_is_what_its_checksum_says(program: StaticProgram, architecture: str):
    path = program.path(architecture)
    assert checksum(path) == program.read_checksums()[path.name]


@each_program
def test_the_binaries_were_built_from_the_sources_that_are_here(program: StaticProgram):
    command = f"run python -m sandboxes.{program.name}.build"
    assert program.read_checksums()["sources"] == program.source_checksum(), command


@each_program
@each_architecture
def test_a_binary_holds_no_path_of_the_machine_that_built_it(program: StaticProgram, architecture: str):
    content = program.path(architecture).read_bytes()
    assert str(program.folder.parent).encode() not in content
    assert str(Path.home()).encode() + b"/" not in content


@pytest.mark.parametrize(("name", "expected"), [("amd64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64")])
def test_other_names_of_an_architecture_are_known(name: str, expected: str):
    assert RUNNER.path(name) == RUNNER.binaries / f"runner-{expected}"


@each_program
def test_an_architecture_without_a_binary_is_refused_with_the_list(program: StaticProgram):
    with pytest.raises(SandboxUnavailable, match=rf"{program.name} .*'riscv64' \(there are: aarch64, x86_64\)"):
        program.path("riscv64")


@pytest.mark.slow
@pytest.mark.timeout(600)
@each_program
@each_architecture
def test_building_again_gives_the_same_bytes(program: StaticProgram, architecture: str, tmp_path: Path):
    try:
        installed = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the compiler is not installed (pip install ziglang)")
    if installed != ZIGLANG:
        pytest.skip(f"the binaries are built with ziglang {ZIGLANG}, installed is {installed}")
    program.build(architecture, tmp_path / "built")
    assert (tmp_path / "built").read_bytes() == program.path(architecture).read_bytes()
