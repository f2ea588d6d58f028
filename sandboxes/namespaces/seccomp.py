"""The system calls that a box may not make, as a classic BPF program.

Namespaces leave these doors open: new user namespaces (in which a process has every capability again), the keyrings
of the user, io_uring (which other filters do not see), AF_VSOCK (which no network namespace closes), the limits of the
runner (which a process of its user could set, and so end the box), and old or rare calls that only widen the kernel's
surface. Everything else is allowed. No library is needed: an instruction is eight bytes.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxes.errors import SandboxUnavailable

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets into struct seccomp_data; arguments are 64 bits, of which the low half comes first.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_X32 = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into someone else's terminal
_RUNNER_PID = 1
_VSOCK = 40
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

_DENIED = {
    # name: (x86-64, aarch64); None where the architecture has no such call
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


@dataclass(frozen=True)
class _Architecture:
    audit: int
    column: int
    clone: int
    clone3: int
    ioctl: int
    prlimit64: int
    socket: int
    socketpair: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, clone=56, clone3=435, ioctl=16, prlimit64=302, socket=41, socketpair=53),
    "aarch64": _Architecture(0xC00000B7, 1, clone=220, clone3=435, ioctl=29, prlimit64=261, socket=198, socketpair=199),
}


_IO_URING_SETUP = 425
_NONE = 0xFFFFFFFF
_SOCKET_CALLS = {
    # architecture: socket, and socketcall, whose arguments a filter cannot see
    0xC000003E: (41, _NONE),  # x86-64
    0x40000003: (359, 102),  # x86, also of a 64-bit program by `int 0x80`
    0xC00000B7: (198, _NONE),  # aarch64
    0x40000028: (281, _NONE),  # arm
}


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter for a machine as ``platform.machine()`` names it (this one).

    Raises: SandboxUnavailable for an architecture whose call numbers are not listed here.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxUnavailable(f"no seccomp filter for the architecture {machine!r}; use docker")
    return b"".join(_program(_ARCHITECTURES[machine]))


@functools.cache
def container_filter() -> bytes:
    """What the filter that Docker brings leaves open, on any machine: AF_VSOCK, and io_uring, which could open one too.

    Older releases of Docker leave both open. Of other architectures than those listed nothing is refused.
    """
    return b"".join([_instruction(_LOAD, _ARCHITECTURE), *_container_program(), _instruction(_RETURN, _ALLOW)])


def _container_program() -> Iterator[bytes]:
    for audit, (socket, socketcall) in _SOCKET_CALLS.items():
        body = [
            _instruction(_LOAD, _NUMBER),
            *[_instruction(_AT_LEAST, _X32, no=1), _refuse(errno.ENOSYS)],
            *[_instruction(_EQUAL, _IO_URING_SETUP, no=1), _refuse(errno.ENOSYS)],
            *[_instruction(_EQUAL, socketcall, no=1), _refuse(errno.EPERM)],
            *_when(socket, _FIRST_ARGUMENT, [(_EQUAL, _VSOCK)], errno.EAFNOSUPPORT),
            _instruction(_RETURN, _ALLOW),
        ]
        yield _instruction(_EQUAL, audit, no=len(body))
        yield from body


def _program(architecture: _Architecture) -> list[bytes]:
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture.audit, yes=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, no=1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        number = numbers[architecture.column]
        if number is not None:
            program += [_instruction(_EQUAL, number, no=1), _refuse(errno.EPERM)]
    # The flags of clone3 are out of a filter's reach; C libraries fall back to clone.
    program += [_instruction(_EQUAL, architecture.clone3, no=1), _refuse(errno.ENOSYS)]
    program += _when(architecture.clone, _FIRST_ARGUMENT, [(_ANY_BIT, _NAMESPACE_FLAGS)], errno.EPERM)
    program += _when(
        architecture.ioctl, _SECOND_ARGUMENT, [(_EQUAL, request) for request in _TERMINAL_INPUT], errno.EPERM
    )
    program += _when(architecture.prlimit64, _FIRST_ARGUMENT, [(_EQUAL, _RUNNER_PID)], errno.EPERM)
    for call in (architecture.socket, architecture.socketpair):
        program += _unless_one_of(call, _FIRST_ARGUMENT, _FAMILIES, errno.EAFNOSUPPORT)
    return [*program, _instruction(_RETURN, _ALLOW)]


def _when(call: int, argument: int, tests: list[tuple[int, int]], error: int) -> list[bytes]:
    """Refuse ``call`` where any of the tests on its argument holds."""
    body = [_instruction(_LOAD, argument)]
    for index, (test, value) in enumerate(tests):
        body.append(_instruction(test, value, yes=len(tests) - index))
    body += [_instruction(_RETURN, _ALLOW), _refuse(error)]
    return [_instruction(_EQUAL, call, no=len(body)), *body]


def _unless_one_of(call: int, argument: int, values: tuple[int, ...], error: int) -> list[bytes]:
    """Refuse ``call`` unless its argument is one of ``values``."""
    body = [_instruction(_LOAD, argument)]
    for index, value in enumerate(values):
        body.append(_instruction(_EQUAL, value, yes=len(values) - index))
    body += [_refuse(error), _instruction(_RETURN, _ALLOW)]
    return [_instruction(_EQUAL, call, no=len(body)), *body]


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One BPF instruction; ``yes`` and ``no`` are how many instructions a test skips."""
    return struct.pack("<HBBI", code, yes, no, value)
