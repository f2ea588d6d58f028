"""Docker boxes, against a real daemon: what they keep apart, what they survive, and that they go away."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandboxes import docker, images
from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import ImageNotFound, SandboxClosed, SandboxStartError, SandboxUnavailable
from sandboxes.ownership import OWNER_LABEL, RUN_LABEL, Owner, OwnerState
from sandboxes.rootfs import busybox_archive
from sandboxes.runner_file import RUNNER, RUNNER_LABEL

pytestmark = pytest.mark.docker

TASK_IMAGE = "hermes-sandbox-tests:task"


@asynccontextmanager
async def box_of(image: str, **changes) -> AsyncIterator[Sandbox]:
    box = await docker.start(SandboxSpec(image=image, **changes))
    try:
        yield box
    finally:
        await box.close()


@pytest.fixture
async def box(busybox_image) -> AsyncIterator[Sandbox]:
    async with box_of(busybox_image) as box:
        yield box


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def task_image(docker_client) -> Iterator[str]:
    """An image with everything in the way: entrypoint, user, health check, files of root, another version's runner."""
    packed = io.BytesIO(busybox_archive(lambda _line: None))
    with tarfile.open(fileobj=packed, mode="a") as archive:
        folder = tarfile.TarInfo("workspace/task")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        readme = tarfile.TarInfo("workspace/task/README")
        readme.size = len(b"do it")
        archive.addfile(readme, io.BytesIO(b"do it"))
        archive.addfile(tarfile.TarInfo(RUNNER.lstrip("/")))
    repository, tag = TASK_IMAGE.split(":")
    changes = [
        'ENTRYPOINT ["/bin/false"]',
        "USER 4242",
        "WORKDIR /root",
        "ENV TASK=7 HOME=/root",
        "HEALTHCHECK CMD false",
        f"LABEL {RUNNER_LABEL}=0000",
    ]
    docker_client.api.import_image_from_data(packed.getvalue(), repository=repository, tag=tag, changes=changes)
    yield TASK_IMAGE
    docker_client.images.remove(TASK_IMAGE, force=True)


@pytest.fixture
def image_of_nothing(docker_client) -> Iterator[str]:
    """No program, no list of users."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    name = f"hermes-sandbox-tests:{uuid.uuid4().hex[:12]}"
    repository, tag = name.split(":")
    docker_client.api.import_image_from_data(packed.getvalue(), repository=repository, tag=tag)
    yield name
    docker_client.images.remove(name, force=True)


def containers_of(client, run_id: str) -> list[str]:
    return [c["State"] for c in client.api.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})]


# ---- what is inside


async def test_commands_run_as_a_plain_user_that_the_image_does_not_know(box):
    result = await box.exec("id -u; pwd; touch mine; touch /root/not /bin/not 2>&1 | grep -c denied")
    assert result.output.split() == ["1000", "/workspace", "2"]


async def test_the_grader_may_run_as_root_and_read_what_the_agent_wrote(box):
    await box.write("answer", b"42")
    result = await box.exec("id -u; cat /workspace/answer; touch /root/grade && echo ok", user="root")
    assert result.output.split() == ["0", "42ok"]


async def test_no_capability_can_be_used_or_regained(box):
    lines = (await box.exec("grep -E 'CapEff|CapPrm|NoNewPrivs|Seccomp:' /proc/self/status")).output.split()
    assert lines == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_root_of_the_box_has_no_right_over_the_machine(box):
    attempts = (
        "mount -t tmpfs t /mnt",
        "mknod /dev/x b 8 0",
        "hostname other",
        "echo 1 > /proc/sys/kernel/panic",
        "chroot /tmp /bin/true",
        "renice -n -5 $$",
    )
    for attempt in attempts:
        assert (await box.exec(attempt, user="root")).exit_code != 0, attempt


async def test_an_agent_that_is_root_cannot_set_the_limits_of_the_runner(docker_client):
    if not images.exists(docker_client, images.BOOKWORM):
        pytest.skip(f"{images.BOOKWORM} is not built: {images.BUILD_COMMAND} bookworm")
    async with box_of(images.BOOKWORM, user="root") as box:
        refused = await box.exec(["prlimit", "--pid", "1", "--nofile=3:3"])
        assert "not permitted" in refused.output
        assert (await box.exec("id -u", user="4294967296")).exit_code == 126


async def test_a_box_has_no_network(box):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        addresses = {"127.0.0.1", "172.17.0.1", socket.gethostbyname(socket.gethostname())}
        for address in addresses:
            result = await box.exec(["nc", "-w", "2", address, str(port)])
            assert result.exit_code != 0, address
    assert (await box.exec("ls /sys/class/net")).output.split() == ["lo"]


async def test_no_socket_leads_past_the_network_namespace(docker_client):
    if not images.exists(docker_client, images.BOOKWORM):
        pytest.skip(f"{images.BOOKWORM} is not built: {images.BUILD_COMMAND} bookworm")
    attempts = """
import ctypes, os, socket
try: socket.socket(40, socket.SOCK_STREAM)
except OSError as error: print(error.errno)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 8, 0), os.strerror(ctypes.get_errno()))
print(socket.socketpair()[0].family.name, socket.socket().family.name)
"""
    async with box_of(images.BOOKWORM) as box:
        tried = await box.exec(["python3", "-c", attempts])
        assert tried.output == f"{errno.EAFNOSUPPORT}\n-1 Function not implemented\nAF_UNIX AF_INET\n"


async def test_a_box_without_network_still_speaks_to_itself_by_name(box):
    server = await box.start("while true; do echo hello | nc -l -p 7000; done")
    async with asyncio.timeout(20):
        while (result := await box.exec("nc -w 2 localhost 7000 < /dev/null")).output != "hello\n":
            assert (await box.poll(server)).exit_code is None, result.output


async def test_a_box_that_asks_for_a_network_has_one(busybox_image):
    async with box_of(busybox_image, network="bridge") as box:
        assert (await box.exec("ls /sys/class/net")).output.split() == ["eth0", "lo"]


async def test_no_file_of_the_host_is_inside(box, tmp_path):
    (tmp_path / "secret").write_text("host")
    assert (await box.exec(["cat", str(tmp_path / "secret")])).exit_code != 0
    mounts = (await box.exec("cut -d ' ' -f 4,5 /proc/self/mountinfo | grep -v '^/ '")).output
    allowed = ("/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/dev/", "/proc/", "/sys/")
    foreign = [line for line in mounts.splitlines() if not line.split(" ")[1].startswith(allowed)]
    assert foreign == []


async def test_nothing_of_this_process_is_in_the_environment(box, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = await box.exec("env; cat /proc/1/environ", user="root")
    assert "secret" not in result.output


async def test_an_image_is_used_whatever_its_entrypoint_user_and_health_check(task_image):
    async with box_of(task_image) as box:
        result = await box.exec("id -u; echo $TASK $HOME; pwd")
    assert result.output.split() == ["1000", "7", "/tmp", "/workspace"]


@pytest.mark.parametrize("user", [None, "root"])
async def test_an_image_without_users_and_programs_is_a_box(image_of_nothing, user):
    async with box_of(image_of_nothing, user=user) as box:
        await box.write("file", b"x")
        assert await box.read("/workspace/file", user="root") == b"x"
        assert (await box.exec(["ls"])).exit_code == 127
    with pytest.raises(SandboxStartError, match="no user 'nobody'"):
        async with box_of(image_of_nothing, user="nobody"):
            pass


async def test_files_of_the_image_in_the_working_folder_belong_to_the_user(task_image):
    for _ in range(2):  # the second box is made by what was learnt about the image
        async with box_of(task_image) as box:
            assert await box.read("task/README") == b"do it"
            await box.write("task/README", b"done")
            assert (await box.exec("touch task/new && mkdir other")).exit_code == 0


async def test_a_box_of_another_user_keeps_its_rights(task_image):
    async with box_of(task_image, user="root") as box:
        assert (await box.exec("id -u; stat -c %u task/README; echo $HOME")).output.split() == ["0", "0", "/root"]
    async with box_of(task_image, user="1234:5678", workdir="/srv/work") as box:
        assert (await box.exec("id -u; id -g; pwd; touch x && echo ok")).output.split() == [
            "1234",
            "5678",
            "/srv/work",
            "ok",
        ]


async def test_the_environment_of_the_spec_reaches_commands(busybox_image):
    async with box_of(busybox_image, env={"ANSWER": "a 'b'"}) as box:
        assert (await box.exec('echo "$ANSWER"')).stdout == b"a 'b'\n"


# ---- limits


async def test_a_command_that_eats_memory_is_killed_and_the_box_lives(busybox_image):
    async with box_of(busybox_image, memory_mb=48, disk_mb=16) as box:
        hog = await box.exec("awk 'BEGIN { s = \"x\"; while (1) s = s s }'")
        assert hog.exit_code == 137
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_full_disk_is_an_error_of_the_command_and_not_its_death(busybox_image):
    async with box_of(busybox_image, disk_mb=8) as box:
        for folder in ("/workspace", "/tmp", "/var/tmp"):
            result = await box.exec(f"dd if=/dev/zero of={folder}/full bs=1M count=64")
            assert "No space left on device" in result.output
        assert (await box.exec("rm full && echo alive")).stdout == b"alive\n"


async def test_the_number_of_processes_is_bounded(busybox_image):
    async with box_of(busybox_image, pids=20) as box:
        result = await box.exec("i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; wait", timeout_s=20)
        assert "fork" in result.output
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_timeout_kills_what_the_command_started_inside_the_box(box):
    result = await box.exec("setsid sleep 4321 & sleep 4321 & sleep 4321", timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert (await box.exec("ps | grep -c '[s]leep 4321'")).output.strip() == "0"


# ---- files


async def test_files_reach_folders_in_memory_and_come_back(box):
    data = os.urandom(1_000_003)
    for path in ("/workspace/a/b.bin", "/tmp/b.bin"):
        await box.write(path, data)
        assert (await box.exec(["wc", "-c", path])).output.split()[0] == str(len(data))
        assert await box.read(path) == data


async def test_links_in_a_download_lead_nowhere_outside_it(box, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    script = f"""
        mkdir -p out/real && echo data > out/real/file
        ln -s {outside} out/absolute && ln -s ../../../../../../../../etc/passwd out/climbing
        ln -s {outside}/kept out/kept && ln -s real out/inside && mkfifo out/pipe
    """
    assert (await box.exec(script)).exit_code == 0
    await box.download("out", tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (copy / "real/file").read_text() == "data\n"
    assert [entry.name for entry in outside.iterdir()] == ["kept"]
    for path in copy.rglob("*"):
        assert path.resolve().is_relative_to(copy.resolve()), path


# ---- ends


async def test_a_container_killed_from_outside_fails_what_runs_in_it_with_the_reason(box, docker_client):
    command = asyncio.create_task(box.exec("echo started > f; sleep 600"))
    while not (await box.exec("cat f")).stdout:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(docker_client.api.kill, f"hermes-{box.id}")
    with pytest.raises(SandboxClosed, match="ended with exit code 137"):
        await command
    with pytest.raises(SandboxClosed):
        await box.exec("true")
    assert box.closed


async def test_a_container_removed_from_outside_is_a_closed_box_that_can_be_closed(box, docker_client):
    command = asyncio.create_task(box.exec("sleep 600"))
    await box.exec("true")
    await asyncio.to_thread(docker_client.api.remove_container, f"hermes-{box.id}", force=True)
    with pytest.raises(SandboxClosed):
        await command
    await box.close()


class Daemon:
    """The real daemon behind a socket of its own, which can go away and come back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.away = False
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield
        finally:
            server.close()
            self.go_away()

    def go_away(self) -> None:
        self.away = True
        for writer in self._open:
            writer.transport.abort()

    def come_back(self) -> None:
        self.away = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.close()
            return
        to_daemon = await asyncio.open_unix_connection("/var/run/docker.sock")
        self._open |= {writer, to_daemon[1]}
        await asyncio.gather(self._copy(reader, to_daemon[1]), self._copy(to_daemon[0], writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()
        self._open.discard(target)


async def test_a_daemon_that_goes_away_closes_the_box_which_is_removed_when_it_is_back(
    busybox_image, docker_client, run_id, monkeypatch, tmp_path
):
    daemon = Daemon(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{daemon.path}")
    spec = SandboxSpec(image=busybox_image, labels={RUN_LABEL: run_id})
    async with daemon.serving():
        box = await docker.start(spec)
        command = asyncio.create_task(box.exec("sleep 600"))
        await box.exec("true")
        daemon.go_away()
        with pytest.raises(SandboxClosed, match=r"docker\.sock has gone away"):
            await command
        with pytest.raises(SandboxUnavailable, match=r"docker\.sock has gone away"):
            await docker.start(spec)
        daemon.come_back()
        await box.close()
    assert containers_of(docker_client, run_id) == []


async def test_after_close_the_container_is_gone_and_calls_are_refused(busybox_image, docker_client, run_id):
    box = await docker.start(SandboxSpec(image=busybox_image, labels={RUN_LABEL: run_id}))
    assert containers_of(docker_client, run_id) == ["running"]
    await asyncio.gather(box.close(), box.close())
    assert containers_of(docker_client, run_id) == []
    with pytest.raises(SandboxClosed):
        await box.exec("true")


async def test_a_container_says_who_owns_it(busybox_image, docker_client, run_id):
    async with box_of(busybox_image, labels={RUN_LABEL: run_id, OWNER_LABEL: "nobody"}) as box:
        labels = docker_client.api.inspect_container(f"hermes-{box.id}")["Config"]["Labels"]
    owner = Owner.parse(labels[OWNER_LABEL])
    assert (owner.pid, owner.state()) == (os.getpid(), OwnerState.ALIVE)


@pytest.mark.parametrize("state", ["created", "running"])
async def test_a_start_that_is_cancelled_leaves_no_container(busybox_image, docker_client, run_id, state):
    spec = SandboxSpec(image=busybox_image, labels={RUN_LABEL: run_id})
    starting = await start_until(spec, docker_client, state)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert containers_of(docker_client, run_id) == []


async def start_until(spec: SandboxSpec, client, state: str) -> asyncio.Task[Sandbox]:
    """A start that is under way while its container is in ``state``."""
    for _ in range(20):
        starting = asyncio.create_task(docker.start(spec))
        seen: list[str] = []
        while state not in seen and not starting.done():
            seen = await asyncio.to_thread(containers_of, client, spec.labels[RUN_LABEL])
        if not starting.done():
            return starting
        await (await starting).close()  # it was too quick to be caught in that state
    pytest.fail(f"no start was ever seen with its container {state}")


async def test_a_start_cancelled_again_while_it_cleans_up_still_cleans_up(busybox_image, docker_client, run_id):
    spec = SandboxSpec(image=busybox_image, labels={RUN_LABEL: run_id})
    starting = await start_until(spec, docker_client, "created")
    while not starting.done():
        starting.cancel()
        await asyncio.sleep(0.001)
    assert starting.cancelled()
    assert containers_of(docker_client, run_id) == []


async def test_a_start_that_fails_leaves_no_container_and_names_the_step(busybox_image, docker_client, run_id):
    spec = SandboxSpec(image=busybox_image, workdir="/proc/nested", labels={RUN_LABEL: run_id})
    with pytest.raises(SandboxStartError, match="the container did not start"):
        await docker.start(spec)
    with pytest.raises(SandboxStartError, match=r"/etc/passwd/nested .* could not be looked at"):
        await docker.start(SandboxSpec(image=busybox_image, workdir="/etc/passwd/nested", labels={RUN_LABEL: run_id}))
    with pytest.raises(SandboxStartError, match="could be created"):
        await docker.start(SandboxSpec(image=busybox_image, memory_mb=1, disk_mb=1, labels={RUN_LABEL: run_id}))
    assert containers_of(docker_client, run_id) == []


async def test_more_boxes_than_start_at_once_all_come_up(busybox_image):
    boxes = await asyncio.gather(*(docker.start(SandboxSpec(image=busybox_image)) for _ in range(6)))
    outputs = await asyncio.gather(*(box.exec("hostname") for box in boxes))
    await asyncio.gather(*(box.close() for box in boxes))
    assert [result.stdout for result in outputs] == [b"sandbox\n"] * 6


# ---- what is missing


async def test_an_image_that_was_asked_for_is_never_replaced(docker_client):
    with pytest.raises(ImageNotFound, match=r"`python -m sandboxes.images build nosuch`"):
        await docker.start(SandboxSpec(image="hermes-sandbox:nosuch"))
    with pytest.raises(ImageNotFound, match=r"127\.0\.0\.1:9/nothing:1 .* cannot be pulled"):
        await docker.start(SandboxSpec(image="127.0.0.1:9/nothing:1"))


async def test_a_root_folder_is_refused_with_the_way_to_an_image(docker_client, tmp_path):
    with pytest.raises(SandboxStartError, match="docker import"):
        await docker.start(SandboxSpec(root=tmp_path))


def test_a_daemon_that_is_not_there_is_named_with_what_starts_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnavailable, match=r"none\.sock: start one \(scripts/start_dockerd\.sh"):
        docker.check()


def test_a_daemon_that_has_ended_is_told_from_one_that_was_never_there(monkeypatch, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        with pytest.raises(SandboxUnavailable, match=r"nothing answers .* has ended"):
            docker.check()
