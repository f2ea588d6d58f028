"""Root file systems for boxes: a Debian with the tools that agents use, and a tiny one for tests.

Both are made from the packages of the machine's own Debian mirror and need no image registry. ``report`` is called
with lines that tell a person how far it is.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sandboxes.errors import ImageBuildError, ImageUnbuildable
from sandboxes.folders import make_folder, remove_folder

Report = Callable[[str], None]

DEBIAN_SUITE = "bookworm"
DEBIAN_PACKAGES = ("bash", "ca-certificates", "git", "procps", "python-is-python3", "python3", "python3-pytest")
AGENT_UID = 1000
AGENT_HOME = "/home/agent"

_AGENT_PASSWD = f"agent:x:{AGENT_UID}:{AGENT_UID}::{AGENT_HOME}:/bin/sh\n"
_AGENT_GROUP = f"agent:x:{AGENT_UID}:\n"
_NEEDLESS = (
    "etc/resolv.conf",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
_FOLDERS_TO_KEEP = ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log")
_SECONDS_BETWEEN_REPORTS = 5.0
_LINES_OF_AN_ERROR = 12


def build_debian(target: Path, report: Report, *, mirror: str | None = None) -> None:
    """Install a Debian with ``DEBIAN_PACKAGES`` and the user ``agent`` into the empty folder ``target``.

    ``mirror`` None: the Debian mirror that apt uses here, else debootstrap's default.

    Raises: ImageBuildError, saying what to install or change.
    """
    if shutil.which("debootstrap") is None:
        raise ImageUnbuildable("debootstrap is not installed: `apt-get install debootstrap`")
    if os.geteuid() != 0:
        raise ImageUnbuildable("a Debian root file system can only be made by root: run the same command with sudo")
    mirror = mirror or _mirror_of_apt()
    report(f"debootstrap of {DEBIAN_SUITE} from {mirror or 'its default mirror'}; this takes a minute")
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(DEBIAN_PACKAGES)}", DEBIAN_SUITE, str(target)]
    _run_reporting(_in_own_mounts(command + ([mirror] if mirror else [])), report)
    _finish_debian(target)


def build_busybox(target: Path, report: Report) -> None:
    """Unpack the tiny root file system into the empty folder ``target``. Raises: ImageBuildError."""
    with tarfile.open(fileobj=io.BytesIO(busybox_archive(report))) as archive:
        archive.extractall(target, filter="fully_trusted")  # made above, and modes such as 1777 must last


def busybox_archive(report: Report) -> bytes:
    """A tar archive of about 2 MB: one static busybox under all its names, and a root user.

    Raises: ImageBuildError where this machine has no static busybox and cannot get one.
    """
    folder = make_folder(f"busybox-{time.monotonic_ns()}")
    try:
        program = _static_busybox(folder, report)
        names = _output_of([str(program), "--list"]).split()
        return _pack_busybox(program.read_bytes(), names)
    finally:
        remove_folder(folder)


def _finish_debian(root: Path) -> None:
    """Take away what came from the machine or is needless in a box, and add the user."""
    for name in _NEEDLESS:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in _FOLDERS_TO_KEEP:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/hostname").write_text("sandbox\n")
    home = root / AGENT_HOME.lstrip("/")
    home.mkdir(parents=True)
    os.chown(home, AGENT_UID, AGENT_UID)
    for name, line in (("passwd", _AGENT_PASSWD), ("group", _AGENT_GROUP)):
        with (root / "etc" / name).open("a") as file:
            file.write(line)


def _pack_busybox(program: bytes, names: Iterable[str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("usr", 0o755)):
            archive.addfile(_member(folder, mode, tarfile.DIRTYPE))
        for name in names:
            if name != "busybox":
                archive.addfile(_member(f"bin/{name}", 0o777, tarfile.SYMTYPE, link="busybox"))
        archive.addfile(_member("usr/bin", 0o777, tarfile.SYMTYPE, link="../bin"))
        files = {"bin/busybox": (program, 0o755), "etc/passwd": (b"root:x:0:0::/root:/bin/sh\n", 0o644)}
        for name, (data, mode) in files.items():
            archive.addfile(_member(name, mode, tarfile.REGTYPE, size=len(data)), io.BytesIO(data))
    return packed.getvalue()


def _member(name: str, mode: int, kind: bytes, *, link: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.type, member.linkname, member.size = mode, kind, link, size
    return member


def _static_busybox(folder: Path, report: Report) -> Path:
    installed = shutil.which("busybox")
    if installed and _is_static(Path(installed)):
        return Path(installed)
    advice = "install it with `apt-get install busybox-static`"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ImageUnbuildable(f"this machine has no static busybox: {advice}, or the like of your system")
    report("downloading the package busybox-static with apt")
    try:
        _output_of(["apt-get", "download", "--quiet", "busybox-static"], cwd=folder)
        (package,) = folder.glob("busybox-static*.deb")
        _output_of(["dpkg-deb", "--extract", str(package), str(folder / "unpacked")])
    except ImageBuildError as error:
        raise ImageBuildError(f"{error}\nrun `apt-get update` first, or {advice}") from error
    return next(folder.glob("unpacked/**/bin/busybox"))


def _is_static(program: Path) -> bool:
    """Whether an ELF program asks for no dynamic loader (whose path it would name in its first bytes)."""
    return b"/ld-" not in program.read_bytes()[:4096]


def _mirror_of_apt() -> str | None:
    """The address from which apt takes Debian's own packages on this machine; None where it is no Debian."""
    if shutil.which("apt-get") is None:
        return None
    fields = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    targets = _output_of(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"])
    for line in targets.splitlines():
        origin, label, address = line.split("|")
        if origin == label == "Debian" and address.startswith(("http://", "https://")):
            return address
    return None


def _proxy_of_apt() -> dict[str, str]:
    """The proxy that apt is told to use, as the variables that debootstrap's downloader reads."""
    if shutil.which("apt-config") is None:
        return {}
    proxies = {}
    for scheme in ("http", "https"):
        line = _output_of(["apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy"]).strip()
        address = line.removeprefix("PROXY='").removesuffix("'")
        if address.startswith("http"):
            proxies[f"{scheme}_proxy"] = address
    return proxies


def _in_own_mounts(command: list[str]) -> list[str]:
    """What debootstrap mounts in the target then goes away with it, however it ends."""
    private = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") and subprocess.run([*private, "true"], check=False, capture_output=True).returncode == 0:
        return [*private, *command]
    return command


def _run_reporting(command: list[str], report: Report) -> None:
    environment = {**_proxy_of_apt(), **os.environ, "LC_ALL": "C"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout is not None
        lines = [*_reported(process.stdout, report)]
    if process.returncode != 0:
        end = "\n".join(lines[-_LINES_OF_AN_ERROR:])
        raise ImageBuildError(
            f"debootstrap failed with exit code {process.returncode}:\n{end}\n"
            "check that the mirror can be reached, or name another with --mirror URL"
        )


def _reported(stream: Iterable[bytes], report: Report) -> Iterator[str]:
    """Pass every line on, reporting one of them every few seconds."""
    next_report = time.monotonic() + _SECONDS_BETWEEN_REPORTS
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        yield line
        if time.monotonic() >= next_report:
            report(line.removeprefix("I: "))
            next_report = time.monotonic() + _SECONDS_BETWEEN_REPORTS


def _output_of(command: list[str], *, cwd: Path | None = None) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise ImageBuildError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
