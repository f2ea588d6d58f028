"""The committed binaries of the relay."""

from __future__ import annotations

import pytest

from sandboxes.errors import SandboxUnavailable
from sandboxes.relay import build
from sandboxes.relay.binary import relay_path
from sandboxes.runner.build import ARCHITECTURES, checksum


def committed() -> dict[str, str]:
    lines = build.CHECKSUMS.read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_binary_is_what_its_checksum_says(architecture: str):
    path = relay_path(architecture)
    assert checksum(path) == committed()[path.name]
    assert path.stat().st_size < 60_000


def test_the_binaries_were_built_from_the_source_that_is_here():
    assert committed()["sources"] == build.source_checksum(), "run python -m sandboxes.relay.build"


def test_an_architecture_without_a_relay_is_refused():
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        relay_path("riscv64")
