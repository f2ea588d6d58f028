"""The root of a box without an image: system folders of this machine that hold programs, and nothing else.

It is a list of what may be seen, never of what may not: ``/usr``, its links in ``/``, and the few files of ``/etc``
that programs cannot do without. No home, no ``/var``, ``/run``, ``/opt``, ``/srv`` or ``/tmp``, no accounts of the
machine.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from sandboxes.namespaces.plan import SYSTEM, USER_ID, Step, bind, file, folder, link, user_folder
from sandboxes.namespaces.toolchain import toolchain

_PROGRAMS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "java", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "magic", "mime.types", "pki", "protocols", "python3", "rpc", "services", "ssl"),
    "terminfo",
)
_ACCOUNTS = f"""\
root:x:0:0:root:/root:/bin/sh
agent:x:{USER_ID}:{USER_ID}:agent:/home/agent:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = f"root:x:0:\nagent:x:{USER_ID}:\nnogroup:x:65534:\n"
_NAMES = "127.0.0.1 localhost sandbox\n::1 localhost\n"


@functools.cache
def host_root(workdir: str) -> tuple[Step, ...]:
    """The steps to a root with the programs of this machine; looked up once."""
    steps = [bind("/usr"), *_programs(), *_settings(), SYSTEM]
    steps += [folder("/tmp", 0o1777), folder("/var/tmp", 0o1777), folder("/run"), folder("/root", 0o700)]
    steps += [*user_folder("/home/agent"), *user_folder(workdir), *toolchain().steps]
    return tuple(steps)


def image_root(workdir: str) -> tuple[Step, ...]:
    """The steps on top of an unpacked image."""
    return (SYSTEM, folder("/tmp", 0o1777), *user_folder(workdir))


def _programs() -> list[Step]:
    steps: list[Step] = []
    for path in _PROGRAMS:
        if os.path.islink(path):
            steps.append(link(os.readlink(path), path))
        elif os.path.isdir(path):
            steps.append(bind(path))
    return steps


def _setting(path: str) -> Step:
    """A link into the programs stays one, so that both names are the same file."""
    target = os.path.realpath(path)
    return link(target, path) if target.startswith("/usr/") else bind(path)


def _settings() -> list[Step]:
    steps = [_setting(f"/etc/{name}") for name in _ETC if Path("/etc", name).exists()]
    steps += [file("/etc/passwd", _ACCOUNTS), file("/etc/group", _GROUPS), file("/etc/hosts", _NAMES)]
    steps += [
        file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
        file("/etc/hostname", "sandbox\n"),
    ]
    return steps
