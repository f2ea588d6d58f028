"""The seccomp filter, run by a small interpreter, so that both architectures are checked on any machine."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.errors import SandboxUnavailable
from sandboxes.namespaces.seccomp import seccomp_filter

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86, ARM = 0xC000003E, 0xC00000B7
AUDIT = {"x86_64": X86, "aarch64": ARM}
UNIX, INET, INET6, NETLINK, PACKET, VSOCK = 1, 2, 10, 16, 17, 40


def run(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter answers to a call."""
    program = [struct.unpack("<HBBI", word) for word in cut(seccomp_filter(machine))]
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, AUDIT[machine] if architecture is None else architecture, 0, *padded)
    at = accumulator = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += yes if holds else no


def cut(program: bytes) -> list[bytes]:
    return [program[start : start + 8] for start in range(0, len(program), 8)]


def refused(error: int) -> int:
    return ERRNO | error


MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
NUMBERS = {
    # name: (x86-64, aarch64), from the kernel's own tables
    "read": (0, 63),
    "execve": (59, 221),
    "openat": (257, 56),
    "ptrace": (101, 117),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
}


def number(machine: str, name: str) -> int:
    return NUMBERS[name][0 if machine == "x86_64" else 1]


@MACHINES
@pytest.mark.parametrize("name", ["read", "execve", "openat", "ptrace"])
def test_ordinary_calls_are_allowed(machine: str, name: str):
    assert run(machine, number(machine, name)) == ALLOW


@MACHINES
@pytest.mark.parametrize(
    "name",
    [
        "mount",
        "unshare",
        "setns",
        "keyctl",
        "bpf",
        "io_uring_setup",
        "open_by_handle_at",
        "userfaultfd",
        "perf_event_open",
    ],
)
def test_calls_that_lead_out_are_refused(machine: str, name: str):
    assert run(machine, number(machine, name)) == refused(errno.EPERM)


@MACHINES
def test_a_process_or_thread_may_be_made_but_no_namespace(machine: str):
    clone = number(machine, "clone")
    assert run(machine, clone, 17) == ALLOW
    assert run(machine, clone, 0x3D0F00) == ALLOW  # a thread of glibc
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(machine, clone, flag | 17) == refused(errno.EPERM)


@MACHINES
def test_clone3_is_not_there_so_that_libraries_use_clone(machine: str):
    assert run(machine, number(machine, "clone3")) == refused(errno.ENOSYS)


@MACHINES
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_only_some_families_of_sockets_are_there(machine: str, name: str):
    call = number(machine, name)
    assert [run(machine, call, family) for family in (UNIX, INET, INET6, NETLINK)] == [ALLOW] * 4
    assert [run(machine, call, family) for family in (0, PACKET, VSOCK, 38)] == [refused(errno.EAFNOSUPPORT)] * 4


@MACHINES
def test_typing_into_a_terminal_is_refused_and_other_requests_are_not(machine: str):
    ioctl = number(machine, "ioctl")
    assert run(machine, ioctl, 0, 0x5401) == ALLOW
    assert run(machine, ioctl, 0, 0x5412) == run(machine, ioctl, 0, 0x541C) == refused(errno.EPERM)
    # The kernel reads 32 bits of the request: higher ones change nothing.
    assert run(machine, ioctl, 0, 0x1_0000_5412) == refused(errno.EPERM)


@MACHINES
@given(call=st.integers(0, 2**32 - 1))
def test_another_architecture_is_killed_whatever_it_calls(machine: str, call: int):
    assert run(machine, call, architecture=0x40000003) == KILL


def test_the_second_numbering_of_x86_is_not_there():
    assert run("x86_64", 0x40000000 | NUMBERS["mount"][0]) == refused(errno.ENOSYS)


@MACHINES
@given(call=st.integers(0, 2**32 - 1), argument=st.integers(0, 2**64 - 1))
def test_every_call_has_an_answer(machine: str, call: int, argument: int):
    assert run(machine, call, argument, argument) in {
        ALLOW,
        *map(refused, (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)),
    }


def test_an_architecture_without_numbers_is_refused():
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        seccomp_filter("riscv64")
