"""What every backend promises; each test runs on every backend that this machine has.

Most tests share a box of their backend, and work in a folder of their own.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import (
    OutputLimitExceeded,
    Sandbox,
    SandboxClosed,
    SandboxFileError,
    SandboxSpec,
    SandboxStartError,
    SandboxUnavailable,
    open_sandbox,
    start_sandbox,
)
from tests.sandboxes.boxes import BACKENDS, require

SPEC = SandboxSpec(env={"COLOR": "blue"}, memory_mb=512, disk_mb=256)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture(scope="module")
async def shared(backend: str) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend, SPEC) as box:
        yield box


@pytest.fixture
async def box(shared: Sandbox) -> AsyncIterator[Sandbox]:
    yield shared
    await shared.kill_all()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex[:12]


async def is_running(box: Sandbox, mark: str) -> bool:
    """Whether a process of the box, started with ``sleep <mark>``, lives."""
    found = await box.exec(
        f"for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -x 'sleep {mark} '"
    )
    return found.exit_code == 0


def unlikely_seconds() -> str:
    return f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6)}"


# ---- commands


async def test_an_argv_is_not_read_by_a_shell(box: Sandbox):
    result = await box.exec(["printf", "%s|", "$HOME", "a  b", "*", "'"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"$HOME|a  b|*|'|", b"")


async def test_text_is_read_by_a_shell(box: Sandbox):
    result = await box.exec("for i in 1 2 3; do printf $i; done | tr 1 x >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"", b"x23")


async def test_merged_streams_come_in_the_order_of_writing(box: Sandbox):
    result = await box.exec("echo a; echo b >&2; echo c", merge_stderr=True)
    assert (result.stdout, result.stderr) == (b"a\nb\nc\n", b"")


async def test_a_command_starts_in_the_working_folder_which_its_user_may_write_to(box: Sandbox):
    here = await box.exec("touch .mine && rm .mine && pwd")
    other = await box.exec("pwd", cwd="/workspace")
    assert here.exit_code == 0
    assert here.stdout == other.stdout


async def test_a_relative_folder_lies_in_the_working_folder(box: Sandbox, name: str):
    await box.write(f"{name}/deep/file", b"x")
    result = await box.exec("ls", cwd=f"{name}/deep")
    assert result.stdout == b"file\n"


async def test_a_folder_that_is_not_there_is_a_result_that_names_it(box: Sandbox):
    result = await box.exec("true", cwd="/nowhere/at/all")
    assert result.exit_code == 126
    assert b"/nowhere/at/all: No such file or directory" in result.stderr


async def test_a_program_that_is_not_there_is_a_result_that_names_it(box: Sandbox):
    result = await box.exec(["no-such-program"])
    assert result.exit_code == 127
    assert b"no-such-program: No such file or directory" in result.stderr


async def test_the_environment_is_that_of_the_box_and_of_the_call(box: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_API_KEY", "of the host")
    result = await box.exec("echo $COLOR $SIZE ${SECRET_API_KEY-none} ${HOME:+home}", env={"SIZE": "big"})
    assert result.stdout == b"blue big none home\n"


async def test_the_environment_of_a_call_does_not_stay(box: Sandbox):
    await box.exec("true", env={"GONE": "1"})
    assert (await box.exec("echo ${GONE-none}")).stdout == b"none\n"


async def test_a_signal_is_an_exit_code_above_128(box: Sandbox):
    assert (await box.exec("kill -SEGV $$")).exit_code == 128 + 11


async def test_binary_input_comes_back_unchanged(box: Sandbox):
    data = random.Random(1).randbytes(3_000_000)
    result = await box.exec(["cat"], stdin=data, output_limit=10_000_000)
    assert result.stdout == data
    assert result.omitted_bytes == 0


async def test_a_command_that_reads_no_input_is_not_held_up_by_it(box: Sandbox):
    result = await box.exec("exec 0<&-; echo done", stdin=bytes(5_000_000))
    assert (result.exit_code, result.stdout) == (0, b"done\n")


async def test_without_input_a_command_reads_nothing(box: Sandbox):
    assert (await box.exec(["cat"])).stdout == b""


async def test_a_long_command_runs(box: Sandbox):
    result = await box.exec("x='" + "a" * 300_000 + "'; echo ${#x}")
    assert (result.exit_code, result.stdout) == (0, b"300000\n")


async def test_output_above_the_limit_keeps_its_head_and_its_tail_and_counts_the_rest(box: Sandbox):
    result = await box.exec("seq 1 100000", output_limit=1000)
    full = b"".join(b"%d\n" % i for i in range(1, 100001))
    assert result.omitted_bytes == len(full) - 1000
    notice = b"\n[... %d bytes omitted ...]\n" % result.omitted_bytes
    assert result.stdout == full[:500] + notice + full[-500:]


async def test_each_stream_has_the_limit_for_itself(box: Sandbox):
    result = await box.exec("echo short; seq 1 100000 >&2", output_limit=100)
    assert result.stdout == b"short\n"
    assert b"bytes omitted" in result.stderr


async def test_output_of_exactly_the_limit_is_whole(box: Sandbox):
    result = await box.exec("printf 12345678", output_limit=8)
    assert (result.stdout, result.omitted_bytes) == (b"12345678", 0)


async def test_many_commands_run_at_once_and_keep_their_outputs_apart(box: Sandbox):
    results = await asyncio.gather(*[box.exec(f"echo {i}; echo {i} >&2; exit {i}") for i in range(40)])
    found = [(result.exit_code, result.stdout, result.stderr) for result in results]
    assert found == [(i, b"%d\n" % i, b"%d\n" % i) for i in range(40)]


async def test_a_quick_command_does_not_wait_for_a_slow_one(box: Sandbox):
    slow = asyncio.create_task(box.exec(["sleep", unlikely_seconds()]))
    assert (await box.exec("echo quick", timeout_s=20)).stdout == b"quick\n"
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


# ---- their end


@pytest.mark.parametrize(
    "command",
    [
        "sleep {mark}",
        "sleep {mark} & wait",
        "trap '' TERM INT HUP; sleep {mark}; sleep {mark}",
        "setsid sleep {mark} & sleep 1000",
        "setsid sh -c 'setsid sleep {mark} & exit' & sleep 1000",
        "(setsid sh -c 'sleep {mark} & sleep {mark} & exit' &) ; sleep 1000",
    ],
)
async def test_a_timeout_kills_all_that_the_command_started(box: Sandbox, command: str):
    mark = unlikely_seconds()
    result = await box.exec("echo begun; " + command.format(mark=mark), timeout_s=1.0)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, b"begun\n")
    assert result.duration_s < 10
    assert not await is_running(box, mark)


async def test_a_daemon_that_holds_the_output_does_not_hold_up_the_command_and_lives_on(box: Sandbox):
    mark = unlikely_seconds()
    result = await box.exec(f"sleep {mark} & echo done", timeout_s=60)
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"done\n", False)
    assert await is_running(box, mark)


async def test_a_server_that_was_left_running_can_still_write(box: Sandbox, name: str):
    await box.exec(f"(while :; do echo line || exit; echo x >> {name}; sleep 0.01; done) &")
    async with asyncio.timeout(20):
        for lines in (1, 20, 40):
            while (await box.exec(f"test $(wc -l < {name}) -ge {lines}")).exit_code != 0:
                continue


async def test_cancelling_a_call_kills_its_command(box: Sandbox):
    mark = unlikely_seconds()
    call = asyncio.create_task(box.exec(f"sleep {mark}"))
    while not await is_running(box, mark):
        assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(20):
        while await is_running(box, mark):
            continue


async def test_kill_all_ends_every_process_and_says_how_many(box: Sandbox):
    await box.kill_all()
    mark = unlikely_seconds()
    await box.exec(f"sleep {mark} & setsid sleep {mark} & trap '' TERM; (sleep {mark} &) ; true")
    assert await box.kill_all() == 3
    assert not await is_running(box, mark)
    assert (await box.exec("echo still here")).stdout == b"still here\n"


async def test_kill_all_ends_commands_under_way_with_a_result(box: Sandbox):
    mark = unlikely_seconds()
    call = asyncio.create_task(box.exec(f"echo begun; sleep {mark}; true"))
    while not await is_running(box, mark):
        assert not call.done()
    assert await box.kill_all() == 2
    result = await call
    assert (result.exit_code, result.stdout) == (137, b"begun\n")


# ---- commands that are spoken with


async def test_a_command_is_spoken_with_while_it_runs(box: Sandbox):
    async with asyncio.timeout(30), box.pipe(["cat"]) as pipe:
        chunks = pipe.chunks()
        for said in (b"one", b"two"):
            await pipe.feed(said)
            assert await anext(chunks) == said
        await pipe.feed_end()
        assert [chunk async for chunk in chunks] == []
        result = await pipe.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")


async def test_what_is_said_may_be_larger_than_any_buffer(box: Sandbox):
    said = random.Random(2).randbytes(5_000_000)
    heard = bytearray()

    async def feed() -> None:
        await pipe.feed(said)
        await pipe.feed_end()

    async with asyncio.timeout(60), box.pipe(["cat"]) as pipe, asyncio.TaskGroup() as both:
        both.create_task(feed())
        async for chunk in pipe.chunks():
            heard += chunk
    assert heard == said


async def test_the_end_of_a_command_that_is_spoken_with_tells_its_status_and_its_errors(box: Sandbox, name: str):
    await box.write(f"{name}/file", b"")
    command = "ls; pwd | sed 's,.*/,,' >&2; echo $SIZE >&2; exit 7"
    async with box.pipe(command, cwd=name, env={"SIZE": "big"}) as pipe:
        said = b"".join([chunk async for chunk in pipe.chunks()])
        await pipe.feed(b"nobody reads this")
        result = await pipe.wait()
    assert (said, result.exit_code, result.stdout, result.stderr) == (b"file\n", 7, b"", f"{name}\nbig\n".encode())


async def test_of_its_errors_no_more_is_kept_than_the_limit(box: Sandbox):
    async with box.pipe("seq 1 100000 >&2", error_limit=1000) as pipe:
        assert [chunk async for chunk in pipe.chunks()] == []
        result = await pipe.wait()
    assert result.stderr.startswith(b"1\n2\n")
    assert result.stderr.endswith(b"99999\n100000\n")
    assert len(result.stderr) < 1100


async def test_leaving_a_command_kills_it_with_all_that_it_started(box: Sandbox):
    mark = unlikely_seconds()
    async with box.pipe(f"setsid sleep {mark} & echo begun; sleep {mark}") as pipe:
        assert await anext(pipe.chunks()) == b"begun\n"
    async with asyncio.timeout(20):
        while await is_running(box, mark):
            continue


async def test_a_pipe_ends_with_its_command_though_a_daemon_holds_its_output(box: Sandbox):
    for daemon in ("sleep 60", "while :; do echo more; done"):
        async with asyncio.timeout(30), box.pipe(f"({daemon}) & head -c 3000000 /dev/zero") as pipe:
            size = 0
            async for chunk in pipe.chunks():
                size += len(chunk)
            assert size >= 3_000_000
            assert (await pipe.wait()).exit_code == 0
        assert await box.kill_all() > 0


# ---- background


async def test_a_background_process_is_started_fed_polled_and_ends(box: Sandbox):
    process_id = await box.start("read line; echo got $line; read line; exit 5")
    assert process_id.startswith("proc_")
    await box.send(process_id, b"one\n")
    async with asyncio.timeout(20):
        while not (status := await box.poll(process_id)).output:
            assert status.exit_code is None
        await box.send(process_id, b"", eof=True)
        while (status := await box.poll(process_id)).exit_code is None:
            continue
    assert (status.exit_code, status.output) == (5, b"got one\n")
    assert status in await box.processes()


async def test_killing_a_background_process_kills_its_tree(box: Sandbox):
    mark = unlikely_seconds()
    process_id = await box.start(f"setsid sleep {mark} & sleep {mark}")
    while not await is_running(box, mark):
        continue
    await box.kill(process_id)
    assert not await is_running(box, mark)
    assert (await box.poll(process_id)).exit_code == 137


async def test_a_background_process_keeps_the_end_of_its_log(box: Sandbox):
    process_id = await box.start("seq 1 200000")
    async with asyncio.timeout(20):
        while (status := await box.poll(process_id)).exit_code is None:
            continue
    assert status.output.endswith(b"199999\n200000\n")
    assert status.omitted_bytes > 0


async def test_a_process_of_another_box_is_unknown(box: Sandbox):
    with pytest.raises(KeyError):
        await box.poll("proc_999999")


# ---- files


@pytest.mark.parametrize("size", [0, 1, 65_536, 50_000_000])
async def test_a_file_comes_back_as_it_was_written(box: Sandbox, name: str, size: int):
    data = random.Random(size).randbytes(size)
    await box.write(name, data)
    assert await box.read(name) == data
    await box.exec(["rm", name])


async def test_writing_makes_folders_and_sets_the_mode(box: Sandbox, name: str):
    await box.write(f"/workspace/{name}/a b/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await box.exec([f"./{name}/a b/run.sh"])).stdout == b"ran\n"


async def test_writing_without_a_mode_keeps_that_of_the_file(box: Sandbox, name: str):
    await box.write(name, b"#!/bin/sh\necho one\n", mode=0o755)
    await box.write(name, b"#!/bin/sh\necho two\n", mode=None)
    assert (await box.exec([f"./{name}"])).stdout == b"two\n"


async def test_a_written_file_replaces_a_longer_one(box: Sandbox, name: str):
    await box.write(name, b"long content")
    await box.write(name, b"short")
    assert await box.read(name) == b"short"


async def test_files_belong_to_the_user_of_the_box(box: Sandbox, name: str):
    await box.write(name, b"x", mode=0o600)
    assert (await box.exec(f"cat {name} && echo y > {name}")).exit_code == 0


@pytest.mark.parametrize(
    ("prepare", "number"),
    [("true", errno.ENOENT), ("mkdir {name}", errno.EISDIR), ("mkfifo {name}", errno.EINVAL)],
)
async def test_what_cannot_be_read_is_an_error_with_a_number(box: Sandbox, name: str, prepare: str, number: int):
    await box.exec(prepare.format(name=name))
    with pytest.raises(SandboxFileError) as raised:
        await box.read(name)
    assert raised.value.errno == number
    assert name in str(raised.value)


async def test_writing_below_a_file_is_an_error(box: Sandbox, name: str):
    await box.write(name, b"")
    with pytest.raises(SandboxFileError) as raised:
        await box.write(f"{name}/below", b"")
    assert raised.value.errno == errno.ENOTDIR


async def test_reading_more_than_the_limit_is_refused(box: Sandbox, name: str):
    await box.write(name, bytes(1001))
    with pytest.raises(OutputLimitExceeded, match=name):
        await box.read(name, limit=1000)
    assert len(await box.read(name, limit=1001)) == 1001


async def test_a_tree_comes_back_as_it_went_in(box: Sandbox, name: str, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "ünï code").write_bytes(random.Random(2).randbytes(700_000))
    (source / "run").write_bytes(b"#!/bin/sh\n")
    (source / "run").chmod(0o750)
    (source / "link").symlink_to("sub/ünï code")
    (source / "outside").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../../x")
    assert await box.upload(source, f"{name}/tree") == 3
    target = tmp_path / "target"
    assert await box.download(f"{name}/tree", target) == 3
    assert tree_of(target) == {path: what for path, what in tree_of(source).items() if path not in ("outside", "up")}


def tree_of(root: Path) -> dict[str, tuple[int, object]]:
    """Path to mode and content, link target or None for folders."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(root.rglob("*")):
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


async def test_a_file_is_uploaded_and_downloaded_by_its_name(box: Sandbox, name: str, tmp_path: Path):
    source = tmp_path / "one.txt"
    source.write_bytes(b"one")
    assert await box.upload(source, f"{name}/") == 1
    assert await box.upload(source, f"{name}/two.txt") == 1
    (tmp_path / "into").mkdir()
    assert await box.download(f"{name}/one.txt", tmp_path / "into") == 1
    assert await box.download(f"{name}/two.txt", tmp_path / "new" / "three.txt") == 1
    assert (tmp_path / "into" / "one.txt").read_bytes() == (tmp_path / "new" / "three.txt").read_bytes() == b"one"


async def test_an_upload_lies_over_what_is_there(box: Sandbox, name: str, tmp_path: Path):
    (tmp_path / "new").write_bytes(b"new")
    await box.exec(f"mkdir {name}; echo old > {name}/old; echo old > {name}/new")
    await box.upload(tmp_path, name)
    assert (await box.exec(f"cat {name}/old {name}/new")).stdout == b"old\nnew"


async def test_an_upload_does_not_follow_links_that_lie_there(box: Sandbox, name: str, tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_bytes(b"new")
    (tmp_path / "top").write_bytes(b"new")
    await box.exec(f"mkdir {name} {name}-victim; echo old > {name}-victim/top; ln -s ../{name}-victim/top {name}/top")
    (tmp_path / "sub").rename(tmp_path.parent / f"{name}-aside")
    await box.upload(tmp_path, name)
    assert (await box.exec(f"cat {name}-victim/top")).stdout == b"old\n"
    (tmp_path.parent / f"{name}-aside").rename(tmp_path / "sub")
    await box.exec(f"ln -s ../{name}-victim {name}/sub")
    with pytest.raises(SandboxFileError):
        await box.upload(tmp_path, name)
    assert (await box.exec(f"ls {name}-victim")).stdout == b"top\n"


async def test_nothing_is_downloaded_through_a_link_of_the_box(box: Sandbox, name: str, tmp_path: Path):
    await box.exec(f"mkdir {name}; cd {name}; ln -s / out; ln -s . self; ln -s self/../../x way; echo in > in")
    assert await box.download(name, tmp_path / "target") == 2
    assert sorted(os.listdir(tmp_path / "target")) == ["in", "self"]


async def test_a_download_above_the_limit_is_refused(box: Sandbox, name: str, tmp_path: Path):
    await box.exec(f"mkdir {name}; head -c 2000 /dev/zero > {name}/zeros")
    with pytest.raises(OutputLimitExceeded):
        await box.download(name, tmp_path / "target", limit=1999)


async def test_uploading_what_is_not_there_is_an_error_of_this_side(box: Sandbox, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await box.upload(tmp_path / "missing", "x")


# ---- life


async def test_a_closed_box_without_processes_refuses_to_list_them(backend: str):
    async with open_sandbox(backend, SPEC) as box:
        assert await box.processes() == []
    with pytest.raises(SandboxClosed):
        await box.processes()


async def test_a_closed_box_refuses_everything_and_can_be_closed_again(backend: str, tmp_path: Path):
    box = await start_sandbox(backend, SPEC)
    shell = box.shell()
    process_id = await box.start("sleep 1000")
    await box.close()
    await box.close()
    assert box.closed
    calls = [
        lambda: box.exec("true"),
        lambda: shell.run("true"),
        lambda: box.read("x"),
        lambda: box.write("x", b""),
        lambda: box.upload(tmp_path, "x"),
        lambda: box.download("x", tmp_path / "y"),
        lambda: box.start("true"),
        lambda: box.poll(process_id),
        lambda: box.send(process_id, b""),
        lambda: box.kill(process_id),
        box.kill_all,
    ]
    for call in calls:
        with pytest.raises(SandboxClosed):
            await call()
    with pytest.raises(SandboxClosed):
        box.shell()
    with pytest.raises(SandboxClosed):
        async with box.pipe("true"):
            pass


async def test_closing_fails_the_calls_under_way(backend: str):
    box = await start_sandbox(backend, SPEC)
    call = asyncio.create_task(box.exec("sleep 1000"))
    await box.exec("true")
    await box.close()
    with pytest.raises(SandboxClosed):
        await call


async def test_closing_fails_a_command_that_is_spoken_with(backend: str):
    box = await start_sandbox(backend, SPEC)
    async with box.pipe(["cat"]) as pipe:
        await box.close()
        with pytest.raises(SandboxClosed):
            await pipe.wait()
        with pytest.raises(SandboxClosed):
            await anext(pipe.chunks())


async def test_a_close_that_is_cancelled_still_closes(backend: str):
    box = await start_sandbox(backend, SPEC)
    closing = asyncio.create_task(box.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert box.closed
    await box.close()


async def test_two_boxes_share_nothing(backend: str, box: Sandbox, name: str):
    await box.write(name, b"of the first")
    async with open_sandbox(backend, SPEC) as other:
        with pytest.raises(SandboxFileError):
            await other.read(name)


async def test_the_root_of_the_box_is_out_of_the_agents_reach(box: Sandbox, name: str):
    if box.backend == "local":
        pytest.skip("local boxes have one user")
    if (await box.exec("id -u", user="root")).stdout != b"0\n":
        pytest.skip("this box has one id, since an ordinary user started it")
    await box.write(f"/root/{name}", b"hidden", mode=0o600, user="root")
    with pytest.raises(SandboxFileError) as raised:
        await box.read(f"/root/{name}")
    assert raised.value.errno == errno.EACCES
    assert await box.read(f"/root/{name}", user="root") == b"hidden"
    mark = unlikely_seconds()
    graded = asyncio.create_task(box.exec(["sleep", mark], user="root"))
    while not await is_running(box, mark):
        continue
    await box.exec("kill -9 -1")
    assert await is_running(box, mark)
    graded.cancel()
    await asyncio.gather(graded, return_exceptions=True)


async def test_the_agent_cannot_end_the_runner(box: Sandbox):
    if box.backend == "local":
        pytest.skip("local boxes have one user and no processes of their own")
    await box.exec("kill -9 1; kill -TERM 1; kill -STOP 1; kill -9 -1")
    assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_user_that_is_not_there_is_a_result_that_says_so(box: Sandbox):
    if (await box.exec("id -u", user="root")).stdout != b"0\n" or box.backend == "local":
        pytest.skip("this box has one user")
    result = await box.exec("true", user="nosuchuser")
    assert result.exit_code == 126
    assert b"unable to find user nosuchuser" in result.stderr


# ---- the way out, for boxes that are closed


async def test_the_setuid_bit_gives_nothing(box: Sandbox, name: str):
    if box.backend == "local":
        pytest.skip("local boxes are not closed")
    for folder in ("/workspace", "/tmp", "/"):
        program = f"{folder}/{name}/id"
        made = await box.exec(
            f"mkdir {folder}/{name} && cp -L $(command -v id) {program} && chmod 4755 {program}", user="root"
        )
        if made.exit_code == 0:
            assert (await box.exec([program, "-u"])).stdout == (await box.exec(["id", "-u"])).stdout


async def test_processes_of_another_box_are_not_seen(backend: str, box: Sandbox):
    if box.backend == "local":
        pytest.skip("local boxes are not closed")
    mark = unlikely_seconds()
    async with open_sandbox(backend, SPEC) as other:
        await other.start(f"sleep {mark}")
        while not await is_running(other, mark):
            continue
        assert not await is_running(box, mark)
        seen = await box.exec("ls -d /proc/[0-9]* | wc -l", user="root")
        assert int(seen.stdout) < 12


async def test_no_socket_of_a_daemon_is_inside(box: Sandbox):
    if box.backend == "local":
        pytest.skip("local boxes are not closed")
    found = await box.exec("find / -xdev -type s 2>/dev/null; ls /var/run/docker.sock /run/docker.sock", user="root")
    assert found.stdout == b""


async def test_a_user_that_the_box_does_not_have_is_refused_at_its_start(backend: str):
    with pytest.raises((SandboxStartError, SandboxUnavailable), match="nosuch"):
        await start_sandbox(backend, replace(SPEC, user="nosuch"))
