"""The contract itself: what a spec may say, and that every method says what it raises."""

import inspect
import math

import pytest

from sandboxes import Sandbox, SandboxSpec
from sandboxes.base import Pipe, Shell


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpus", 0),
        ("cpus", math.inf),
        ("cpus", math.nan),
        ("memory_mb", -1),
        ("pids", 0),
        ("pids", 10_000_000),
        ("disk_mb", 0),
        ("workdir", "work"),
        ("workdir", "/etc/.."),
        ("network", "host"),
        ("network", "pypi.org"),
    ],
)
def test_a_spec_of_a_box_that_nobody_could_make_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(ValueError, match=rf"SandboxSpec\.{field} "):
        SandboxSpec(**{field: value})


def test_a_spec_may_name_the_hosts_that_a_box_may_reach():
    assert SandboxSpec(network=("pypi.org",)).network == ("pypi.org",)


@pytest.mark.parametrize("contract", [Sandbox, Shell, Pipe])
def test_every_method_says_what_it_raises(contract):
    methods = {name: member for name, member in vars(contract).items() if inspect.isfunction(member)}
    silent = [
        name
        for name, method in methods.items()
        if getattr(method, "__isabstractmethod__", False) and "Raises:" not in (method.__doc__ or "")
    ]
    assert not silent
