"""The digest of a sample."""

import hashlib
import json
import struct

import pytest

from atroposlib.envs.server_handling.certificate import digest

IDS, MASK, LOGPROBS = [1, 2, 151_668], [-100, 2, 151_668], [1.0, -0.1, -1.25e-7]


def test_the_digest_survives_the_wire():
    again = json.loads(json.dumps([IDS, MASK, LOGPROBS]))
    assert digest(*again) == digest(IDS, MASK, LOGPROBS)


@pytest.mark.parametrize(
    "changed",
    [
        ([1, 2, 151_667], MASK, LOGPROBS),
        (IDS, [-100, -100, 151_668], LOGPROBS),
        (IDS, MASK, [1.0, -0.1, -1.26e-7]),
        (IDS[:2], MASK[:2], LOGPROBS[:2]),
    ],
)
def test_any_change_changes_the_digest(changed):
    assert digest(*changed) != digest(IDS, MASK, LOGPROBS)


def test_the_digest_is_taken_over_the_documented_bytes():
    packed = struct.pack("<qqqd", 1, 1, -100, 1.0)
    assert digest([1], [-100], [1.0]) == hashlib.sha256(packed).hexdigest()
