"""The relay's binaries."""

from __future__ import annotations

import pytest

from sandboxes.relay.binary import relay_path
from sandboxes.static_program import ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_binary_is_small(architecture: str):
    assert relay_path(architecture).stat().st_size < 60_000
