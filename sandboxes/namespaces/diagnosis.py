"""Why this machine cannot make a box, in words that say what to change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_CONTAINER = (
    "run it with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`, or use docker boxes"
)


def explain(failures: Mapping[str, str], *, proc: Path = Path("/proc"), root: bool | None = None) -> str:
    """What each program said that tried to make a box, and the causes that can be seen in ``/proc``."""
    tried = "; ".join(f"{program}: {words}" for program, words in failures.items())
    causes = list(_causes(proc, os.geteuid() == 0 if root is None else root, tried))
    return "\n- ".join([f"namespaces cannot be used here ({tried}).", *causes])


def _causes(proc: Path, root: bool, tried: str) -> Iterator[str]:
    if not root and _value(proc / "sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        yield (
            "AppArmor lets only known programs make user namespaces: `sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0`, or install bubblewrap with its AppArmor profile"
        )
    if not root and _value(proc / "sys/kernel/unprivileged_userns_clone") == "0":
        yield "only root may make user namespaces: `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    if _value(proc / "sys/user/max_user_namespaces") == "0":
        yield "user namespaces are switched off: `sudo sysctl -w user.max_user_namespaces=10000`"
    if _is_filtered(proc):
        yield f"this process is under a seccomp filter, as in a container with default settings: {_CONTAINER}"
    elif "cannot mount /proc" in tried:
        yield f"/proc is partly hidden, as in a container: {_CONTAINER}"
    if _is_chroot(proc):
        yield "this process runs in a chroot, where the kernel refuses user namespaces: run it outside, or use docker"


def _value(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _is_filtered(proc: Path) -> bool:
    lines = (_value(proc / "self/status") or "").splitlines()
    return any(line.split() == ["Seccomp:", "2"] for line in lines)


def _is_chroot(proc: Path) -> bool:
    """Whether no mount is at ``/``: the root is then a folder of some mount."""
    lines = (_value(proc / "self/mountinfo") or "").splitlines()
    return bool(lines) and not any(line.split(" ")[4] == "/" for line in lines)
