"""Boxes of Linux namespaces: what they keep in and out, what bounds them, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from sandboxes import Sandbox, SandboxSpec, SandboxStartError, SandboxUnavailable, bubblewrap
from sandboxes.bubblewrap import BubblewrapSandbox
from sandboxes.launch import Program, launch
from sandboxes.namespaces.limits import Limits, prepare_limits
from sandboxes.namespaces.makers import BWRAP, RUNNER, Maker, try_maker
from sandboxes.runner import runner_path
from tests.sandboxes.boxes import require

pytestmark = pytest.mark.namespaces

PROBE = (Path(__file__).parent / "probe.py").read_bytes()
ANOTHER_USER = 60001
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module", autouse=True)
def available() -> None:
    require("bubblewrap")


@pytest.fixture(scope="module", params=[RUNNER, BWRAP], ids=["runner", "bwrap"])
def maker(request: pytest.FixtureRequest) -> Maker:
    problem = try_maker(request.param)
    if problem is not None:
        pytest.skip(f"{request.param.name}: {problem}")
    return request.param


@asynccontextmanager
async def box_of(maker: Maker | None = None, **changes) -> AsyncIterator[BubblewrapSandbox]:
    box = await bubblewrap.start(SandboxSpec(**changes), maker=maker)
    try:
        yield box
    finally:
        await box.close()


@asynccontextmanager
async def box_of_another_user(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, **changes
) -> AsyncIterator[BubblewrapSandbox]:
    """A box that an ordinary user starts, where the tests run as root."""
    setpriv = shutil.which("setpriv")
    if not ROOT or setpriv is None:
        pytest.skip("needs root and setpriv")
    if not os.access(runner_path(os.uname().machine).parent, os.X_OK) or "/root/" in str(Path(__file__)):
        pytest.skip("the project is in a folder that no other user may enter")
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER_USER)

    async def launch_as(program: Program):
        switch = ("setpriv", f"--reuid={ANOTHER_USER}", f"--regid={ANOTHER_USER}", "--clear-groups")
        argv = (*switch, program.executable, *program.argv[1:])
        return await launch(Program(argv, setpriv, program.descriptors))

    monkeypatch.setattr(bubblewrap, "launch", launch_as)
    monkeypatch.setattr(bubblewrap, "prepare_limits", lambda spec, name: Limits((), (), "none"))
    async with box_of(maker, **changes) as box:
        yield box


# ---- what is kept out


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Things of the host that must be out of reach, alive and ready."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    abstract = uuid.uuid4().hex
    home = str(Path.home())
    files = [
        str(secret),
        home,
        "/root/.ssh",
        "/etc/shadow",
        "/etc/sudoers",
        "/var/lib",
        "/run/docker.sock",
        "/sys/kernel",
    ]
    settings = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/swappiness",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
    ]
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        subprocess.Popen(["sleep", "1234.5678"]) as process,
    ):
        unix.bind("\0" + abstract)
        unix.listen()
        yield {
            "port": tcp.getsockname()[1],
            "address": own_address(),
            "abstract": abstract,
            "files": files,
            "settings": settings,
        }
        process.kill()


def own_address() -> str:
    """An address of this machine that is not of the loopback interface, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return client.getsockname()[0]


async def probe(box: Sandbox, victims: dict[str, object], user: str) -> dict[str, object]:
    """What gets through. Only a root that is a box's own is attacked: its accounts are those that the backend wrote."""
    accounts = (await box.exec(["head", "-2", "/etc/passwd"])).stdout
    assert accounts == b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"
    result = await box.exec(
        ["/usr/bin/python3", "-I", "-"], stdin=PROBE, user=user, env={"VICTIMS": json.dumps(victims)}
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def assert_nothing_got_through(found: dict[str, object], user: str) -> None:
    assert found.pop("interfaces") == ["lo"]
    assert found.pop("network inside") is True
    processes = found.pop("processes")
    assert isinstance(processes, list)
    assert len(processes) <= 4
    assert not any("1234.5678" in process or str(Path.home()) in process for process in processes)
    # The root of a box may look around in it, and count what PID 1 has open.
    allowed = {"root of PID 1", "files of PID 1"} if user == "root" else set()
    assert {name for name, got_through in found.items() if got_through} <= allowed


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_nothing_of_the_host_is_in_reach(maker: Maker, victims: dict[str, object], user: str):
    async with box_of(maker) as box:
        assert_nothing_got_through(await probe(box, victims, user), user)


async def test_nothing_of_the_host_is_in_reach_of_a_box_that_an_ordinary_user_started(
    maker: Maker, victims: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    async with box_of_another_user(maker, monkeypatch) as box:
        assert (
            await box.exec("id -un; id -u; touch mine; stat -c %U mine", user="root")
        ).stdout == b"agent\n1000\nagent\n"
        assert_nothing_got_through(await probe(box, victims, "agent"), "agent")


async def test_the_environment_and_the_command_line_of_the_starter_stay_outside(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    async with box_of(maker) as box:
        for user in ("agent", "root"):
            seen = await box.exec("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null", user=user)
            assert b"sk-of-the-host" not in seen.stdout
            assert str(Path(bubblewrap.__file__).parent).encode() not in seen.stdout


async def test_an_agent_with_the_id_of_the_runner_cannot_end_it_or_outlast_a_time_limit(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
):
    async with box_of_another_user(maker, monkeypatch) as box:
        limits = "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))"
        refused = await box.exec(["/usr/bin/python3", "-I", "-c", limits])
        assert "Permission" in refused.output or "permitted" in refused.output
        stopped = await box.exec("kill -STOP $PPID; sleep 60", timeout_s=0.3)
        assert stopped.timed_out
        assert stopped.duration_s < 5
        assert await box.kill_all() == 0


async def test_no_right_can_be_gained(maker: Maker):
    async with box_of(maker) as box:
        status = dict(
            line.split(":\t", 1) for line in (await box.exec(["cat", "/proc/self/status"])).output.splitlines()
        )
        assert (status["CapEff"], status["CapPrm"], status["CapAmb"]) == ("0" * 16,) * 3
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        kept = await box.exec("grep -h CapEff /proc/self/status", user="root")
        assert int(kept.output.split()[1], 16) & ~0xFB == 0


# ---- what is inside


@pytest.mark.skipif(not ROOT, reason="a box of one user belongs to that user")
async def test_the_user_of_a_box_may_write_to_folders_of_its_own_only(maker: Maker):
    writable = r"find / \( -path /proc -o -path /dev \) -prune -o -writable ! -type l -print 2> /dev/null | sort"
    async with box_of(maker) as box:
        assert (await box.exec(writable)).output.split() == ["/home/agent", "/tmp", "/var/tmp", "/workspace"]


async def test_the_root_of_a_box_cannot_change_the_devices_of_the_host(maker: Maker):
    async with box_of(maker) as box:
        changed = await box.exec("echo x > /dev/null && chmod 666 /dev/full && echo changed", user="root")
        assert changed.exit_code != 0
        assert "null" not in changed.output
        assert (await box.exec("head -c 3 /dev/zero | od -An -c; : > /dev/null")).output.split() == ["\\0"] * 3


async def test_the_keys_and_timers_of_the_host_are_not_shown(maker: Maker):
    async with box_of(maker) as box:
        for user in (None, "root"):
            shown = await box.exec("cat /proc/keys /proc/key-users /proc/timer_list", user=user)
            assert shown.stdout == b""


async def test_the_programs_of_the_machine_work(maker: Maker):
    async with box_of(maker) as box:
        for command in (
            "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline",
            "python3 -c 'import subprocess, threading, socket, multiprocessing as m; m.Pool(2).map(abs, [1])'",
            "mkdir t && echo 'def test_it(): assert 1' > t/test_it.py && python3 -m pytest -q t && pytest -q t",
            "test -e /dev/null && test -e /dev/urandom && echo x > /dev/shm/x && echo x > /tmp/x && echo x > ~/x",
            "python3 -c 'import pty; pty.spawn([\"true\"])'",
        ):
            result = await box.exec(command)
            assert result.exit_code == 0, (command, result.output)


async def test_only_listed_folders_of_the_machine_are_inside(maker: Maker):
    async with box_of(maker) as box:
        listed = (await box.exec("ls -A / /home /root /var /opt", user="root")).output.split()
    seen = {name for name in listed if not name.endswith(":")}
    programs = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"}
    own = {"dev", "etc", "home", "opt", "proc", "root", "run", "tmp", "var", "workspace", "agent", "tools", ".runner"}
    assert seen <= programs | own


async def test_a_working_folder_of_another_name_belongs_to_the_user(maker: Maker):
    async with box_of(maker, workdir="/srv/task") as box:
        assert (await box.exec("pwd; touch x && ls")).stdout == b"/srv/task\nx\n"


async def test_commands_run_as_the_user_of_the_spec():
    async with box_of(user="nobody") as box:
        expected = b"nobody\n" if ROOT else b"agent\n"
        assert (await box.exec(["id", "-un"])).stdout == expected


async def test_a_box_of_the_runner_has_no_id_of_the_machine():
    if not ROOT:
        pytest.skip("an ordinary user has one id to give")
    async with box_of(RUNNER) as box:
        inside, outside, count = map(int, (await box.exec("cat /proc/self/uid_map")).output.split())
        assert (inside, count) == (0, 65536)
        assert outside >= 2_000_000_000


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"image": "task:1"}, "no images"), ({"network": "bridge"}, "no network"), ({"root": Path("/proc")}, "no bin")],
)
async def test_what_such_a_box_cannot_be_is_refused(changes: dict[str, object], reason: str):
    with pytest.raises(SandboxUnavailable, match=reason):
        await bubblewrap.start(SandboxSpec(**changes))


# ---- an image folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root file system of the machine's busybox or dash, of its own."""
    shell = shutil.which("busybox") or shutil.which("dash")
    if shell is None:
        pytest.skip("needs busybox or dash")
    root = tmp_path / "image"
    for name in ("bin", "etc", "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    for program in {shell, shutil.which("cat"), shutil.which("ls"), shutil.which("stat"), shutil.which("rm")}:
        copy_program(Path(str(program)), root)
    (root / "bin" / "sh").symlink_to(Path(shell).name)
    for path in [tmp_path, *tmp_path.parents][:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    return root


def copy_program(program: Path, root: Path) -> None:
    shutil.copy2(program, root / "bin" / program.name)
    libraries = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    for word in libraries.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(word, target)


async def test_an_image_folder_is_the_root_and_stays_as_it_is(image: Path):
    before = sorted(str(path) for path in image.rglob("*"))
    async with box_of(RUNNER, root=image) as box:
        assert (
            await box.exec("echo $0; ls /etc; cat /etc/passwd")
        ).stdout == b"sh\npasswd\nroot:x:0:0::/root:/bin/sh\n"
        if ROOT:
            owners = await box.exec("stat -c '%u %n' /bin /etc/passwd /workspace")
            assert owners.stdout == b"0 /bin\n0 /etc/passwd\n1000 /workspace\n"
            refused = await box.exec("echo x > /etc/passwd")
            assert refused.exit_code != 0
        changed = await box.exec("rm /etc/passwd && echo new > /etc/new && ls /etc", user="root")
        assert changed.stdout == b"new\n"
        await box.write("file", b"x")
        assert await box.read("file") == b"x"
    assert sorted(str(path) for path in image.rglob("*")) == before
    assert (image / "etc" / "passwd").read_text() == "root:x:0:0::/root:/bin/sh\n"


async def test_an_image_folder_of_an_ordinary_user_is_the_root_too(image: Path, monkeypatch: pytest.MonkeyPatch):
    if not ROOT:
        pytest.skip("the other tests of images are of an ordinary user here")
    image = image.rename(image.with_name("image:tag,\\x"))
    for path in (image, *image.rglob("*")):
        os.chown(path, ANOTHER_USER, ANOTHER_USER, follow_symlinks=False)
    async with box_of_another_user(RUNNER, monkeypatch, root=image) as box:
        changed = await box.exec("rm /etc/passwd && echo new > /etc/new && ls /etc; echo x > x; cat x")
        assert changed.stdout == b"new\nx\n"
    assert (image / "etc" / "passwd").exists()


async def test_links_of_an_image_lead_to_places_in_the_box(image: Path):
    for name, place in {"tmp": "var/tmp", "workspace": "data"}.items():
        (image / place).mkdir(parents=True)
        (image / name).symlink_to(f"/{place}")
    async with box_of(RUNNER, root=image) as box:
        written = await box.exec("echo x > /tmp/x; echo y > y; cat /var/tmp/x /data/y; stat -c %a /var/tmp")
        assert written.output == "x\ny\n1777\n"
    assert list((image / "data").iterdir()) == []


@pytest.mark.parametrize("name", ["tmp", "workspace", "dev", "proc"])
async def test_a_link_of_an_image_to_a_folder_of_the_host_changes_nothing_there(
    image: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    """While a box is made, the root of the host stands at /old."""
    monkeypatch.chdir("/")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, ANOTHER_USER, ANOTHER_USER)
        (image / name).symlink_to(f"/old{folder}")
        with pytest.raises(SandboxStartError, match=name):
            async with box_of_another_user(RUNNER, monkeypatch, root=image, workdir="/workspace/below"):
                pass
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert os.listdir(folder) == []


async def test_boxes_of_one_image_do_not_see_each_other(image: Path):
    async with box_of(RUNNER, root=image) as one, box_of(RUNNER, root=image) as other:
        await one.write("/workspace/x", b"1")
        assert (await other.exec("ls /workspace")).stdout == b""


# ---- what bounds it


async def test_a_full_disk_is_an_error_inside_and_no_more(maker: Maker):
    async with box_of(maker, disk_mb=16) as box:
        filled = await box.exec("head -c 100000000 /dev/zero > big; stat -c %s big")
        assert b"No space left" in filled.stderr
        assert int(filled.stdout) <= 16 << 20
        assert (await box.exec("rm big && echo small > small && cat small")).stdout == b"small\n"


async def test_a_process_that_takes_too_much_memory_ends_and_the_box_lives(maker: Maker):
    async with box_of(maker, memory_mb=96, disk_mb=16) as box:
        hog = await box.exec(["python3", "-c", "x = bytearray(400 << 20); x[::4096] = b'x' * len(x[::4096])"])
        assert hog.exit_code in (1, 137)
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_fork_bomb_is_bounded_and_ends_at_its_time_limit(maker: Maker):
    async with box_of(maker, pids=64) as box:
        began = time.monotonic()
        bomb = await box.exec("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=1, output_limit=1000)
        assert bomb.timed_out or bomb.exit_code != 0
        await box.kill_all()
        assert time.monotonic() - began < 20
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_what_bounds_a_box_is_said():
    async with box_of() as box:
        assert "pids" in box.limits
        assert "memory" in box.limits


# ---- its end


def processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_text().split("\0")[:2] == ["sleep", mark]:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def cgroups_of(owner: int) -> list[str]:
    names = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    return [name for name in names if name.startswith(f"hermes-{owner}-")]


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_closing_leaves_no_process_and_no_control_group(maker: Maker):
    mark = f"{time.time_ns()}"
    async with box_of(maker) as box:
        await box.exec(f"trap '' TERM; setsid sleep {mark} & (setsid sleep {mark} &) ; true")
        await box.start(f"sleep {mark}")
        await until(lambda: len(processes_with(mark)) == 3)
        assert bool(cgroups_of(os.getpid())) == ("control groups v" in box.limits)
    assert processes_with(mark) == []
    assert cgroups_of(os.getpid()) == []


OWNER = """
import asyncio, os, sys, time
from sandboxes import SandboxSpec, bubblewrap
from sandboxes.namespaces import makers

async def main():
    box = await bubblewrap.start(SandboxSpec(), maker=getattr(makers, sys.argv[2]))
    await box.exec(f"trap '' TERM; setsid sleep {sys.argv[1]} & (setsid sleep {sys.argv[1]} &) ; true")
    print(box.limits, flush=True)
    if sys.argv[3] == "forked" and os.fork() == 0:
        time.sleep(60)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["alone", "forked"])
async def test_an_owner_that_is_killed_takes_its_boxes_with_it(maker: Maker, kind: str):
    """Also where a child that it forked still holds its end of the wire."""
    mark = f"{time.time_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, mark, "BWRAP" if maker is BWRAP else "RUNNER", kind],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline()
            assert len(processes_with(mark)) == 2
            owner.kill()
            owner.wait()
            await until(lambda: processes_with(mark) == [])
            await until(lambda: cgroups_of(owner.pid) == [])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


async def test_a_start_that_is_cancelled_leaves_nothing(maker: Maker):
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        starting = asyncio.create_task(bubblewrap.start(SandboxSpec(), maker=maker))
        await asyncio.sleep(delay)
        starting.cancel()
        box = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(box, Sandbox):
            await box.close()
    await until(lambda: cgroups_of(os.getpid()) == [])


async def test_a_box_that_dies_refuses_calls(maker: Maker):
    async with box_of(maker) as box:
        call = asyncio.create_task(box.exec("sleep 1000"))
        await box.exec("true")
        box._launched.process.kill()
        with pytest.raises(Exception, match="closed"):
            await call
        assert box.closed


# ---- without control groups


def sleepers(mark: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", mark]]


@pytest.mark.parametrize("user", [None, "root"])
async def test_without_control_groups_processes_are_bounded_or_it_is_said_that_they_are_not(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, user: str | None
):
    monkeypatch.setattr(bubblewrap, "prepare_limits", partial(prepare_limits, hierarchies=()))
    mark = f"{random.randrange(10**6, 10**7)}.5"
    many = f"i=0; while [ $i -lt 60 ]; do sleep {mark} & i=$((i + 1)); done; wait"
    async with box_of(maker, pids=20) as box:
        running = asyncio.create_task(box.exec(many, user=user, timeout_s=3.0))
        await asyncio.sleep(1.5)
        count = len(sleepers(mark))
        await running
        assert count > 0
        assert "limits per process" in box.limits
        assert count <= 20 or (user == "root" and "pids not for root" in box.limits)
