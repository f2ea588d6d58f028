"""The channel to a runner, against the runner itself and against streams that misbehave."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import signal
import struct
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxes import SandboxSpec, local
from sandboxes.channel import Channel
from sandboxes.errors import SandboxClosed, SandboxStartError, SandboxTimeout
from sandboxes.frames import INPUT_WINDOW, PROTOCOL_VERSION, Command, Frame, FrameBuffer, Kind, Run
from sandboxes.launch import Launched, Program, launch
from sandboxes.runner import runner_path

HELLO = Frame(Kind.HELLO, 0, struct.pack("<III", PROTOCOL_VERSION, 1, 0))


@pytest.fixture
async def launched() -> AsyncIterator[Launched]:
    runner = str(runner_path(platform.machine()))
    launched = await launch(Program((runner,), runner))
    yield launched
    await launched.end()


@pytest.fixture
def channel(launched: Launched) -> Channel:
    return launched.channel


class Silence:
    """The other end as a test plays it: what it says is fed to ``reader``, what it hears is in ``heard``."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.heard = bytearray()
        self.closed = False

    def say(self, *frames: Frame) -> None:
        self.reader.feed_data(b"".join(frame.encode() for frame in frames))

    def kinds(self) -> list[Kind]:
        return [frame.kind for frame in FrameBuffer().feed(bytes(self.heard))]

    def write(self, data: bytes) -> None:
        self.heard += data

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Silence, Channel]]:
    silence = Silence()
    silence.say(HELLO)
    channel = await Channel.open(silence.reader, silence)
    yield silence, channel
    await channel.close()


async def test_a_runner_that_says_nothing_is_a_start_error_in_time():
    silence = Silence()
    with pytest.raises(SandboxStartError, match=r"within 0.05 s"):
        await Channel.open(silence.reader, silence, timeout_s=0.05)
    assert silence.closed


@pytest.mark.parametrize("said", [b"", b"bash: no such file\n", struct.pack("<III", 7, 1, 0)])
async def test_a_stream_that_is_no_runners_is_a_start_error(said: bytes):
    silence = Silence()
    silence.reader.feed_data(said)
    silence.reader.feed_eof()
    with pytest.raises(SandboxStartError):
        await Channel.open(silence.reader, silence)


async def test_the_last_words_of_a_program_that_does_not_start_are_in_the_error():
    with pytest.raises(SandboxStartError, match="it said: out of luck"):
        await launch(Program(("sh", "-c", "echo out of luck >&2; exit 1"), "/bin/sh"))
    with pytest.raises(SandboxStartError, match="cannot start /no/such/program"):
        await launch(Program(("x",), "/no/such/program"))


async def test_the_runner_refuses_arguments_it_does_not_know():
    runner = str(runner_path(platform.machine()))
    with pytest.raises(SandboxStartError):
        await launch(Program((runner, "ids", "0", "1"), runner))


async def test_when_the_runner_dies_every_call_fails(launched: Launched):
    calls = [asyncio.create_task(launched.channel.run(Command(("sleep", "1000")))) for _ in range(5)]
    await launched.channel.run(Command(("true",)))
    launched.process.send_signal(signal.SIGKILL)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, SandboxClosed)
    with pytest.raises(SandboxClosed):
        await launched.channel.run(Command(("true",)))


async def test_frames_that_make_no_sense_close_the_channel(peer: tuple[Silence, Channel]):
    silence, channel = peer
    call = await channel.begin(Command(("x",)))
    silence.say(Frame(Kind.OUT, 12345, b"for nobody"))
    with pytest.raises(SandboxClosed, match="unknown call 12345"):
        await call.wait()


async def test_a_call_that_is_not_answered_times_out_after_its_grace(
    peer: tuple[Silence, Channel], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sandboxes.channel.ANSWER_GRACE_S", 0.05)
    silence, channel = peer
    with pytest.raises(SandboxTimeout):
        await channel.run(Command(("x",), time_limit_s=0.01))
    with pytest.raises(SandboxTimeout):
        await channel.kill_all()
    assert silence.kinds() == [Kind.RUN, Kind.KILL, Kind.KILL_ALL]


async def test_a_call_that_the_box_does_not_take_times_out_too(
    peer: tuple[Silence, Channel], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sandboxes.channel.ANSWER_GRACE_S", 0.05)
    silence, channel = peer
    monkeypatch.setattr(silence, "drain", asyncio.Event().wait)
    with pytest.raises(SandboxTimeout):
        await channel.run(Command(("x",), time_limit_s=0.01))
    with pytest.raises(SandboxTimeout):
        await channel.ping(0.01)


def test_another_event_loop_is_refused_by_name_and_may_close_the_box():
    with asyncio.Runner() as other, asyncio.Runner() as own:
        box = own.run(local.start(SandboxSpec()))
        thread = threading.Thread(target=own.get_loop().run_forever)
        thread.start()
        with pytest.raises(RuntimeError, match="event loop that opened it"):
            other.run(box.exec("true"))
        other.run(box.close())
        own.get_loop().call_soon_threadsafe(own.get_loop().stop)
        thread.join()
    assert not box.folder.exists()


def test_a_box_can_be_closed_where_the_event_loop_that_opened_it_has_ended():
    with asyncio.Runner() as own:
        box = own.run(local.start(SandboxSpec()))
    with asyncio.Runner() as other:
        with pytest.raises(SandboxClosed, match="event loop that opened it has ended"):
            other.run(box.exec("true"))
        other.run(box.close())
    assert not box.folder.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the ended loop leaves its transport open
        del box
        gc.collect()


async def test_a_timeout_of_the_caller_is_the_callers(peer: tuple[Silence, Channel]):
    silence, channel = peer
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.run(Command(("x",), time_limit_s=100))
    assert silence.kinds() == [Kind.RUN, Kind.KILL]


async def test_input_waits_for_credit(peer: tuple[Silence, Channel]):
    silence, channel = peer
    run = asyncio.create_task(channel.run(Command(("x",)), stdin=bytes(INPUT_WINDOW + 1)))
    await until(lambda: silence.kinds().count(Kind.INPUT) == 4)
    await asyncio.sleep(0)
    assert Kind.INPUT_END not in silence.kinds()
    silence.say(Frame(Kind.CREDIT, 1, struct.pack("<I", 1)))
    await until(lambda: Kind.INPUT_END in silence.kinds())
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_an_error_of_the_source_kills_the_command_and_is_raised(channel: Channel):
    async def source() -> AsyncIterator[bytes]:
        yield b"some"
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        await channel.run_fed(Command(("cat",)), source())
    assert (await channel.run(Command(("echo", "fine")))).out == b"fine\n"


async def test_a_stream_that_nobody_reads_holds_up_nothing_else(channel: Channel):
    zeros = Command(("read", "/proc/self/exe", str(1 << 40)), Run.FILE)
    endless = Command(("sh", "-c", "cat /dev/zero"))
    async with channel.streaming(endless):
        async with channel.streaming(zeros) as call:
            assert b"".join([chunk async for chunk in call.chunks()])[:4] == b"\x7fELF"
        assert (await channel.run(Command(("echo", "fine")))).out == b"fine\n"


async def test_a_stream_left_early_is_killed(channel: Channel):
    async with channel.streaming(Command(("cat", "/dev/zero"))) as call:
        async for _ in call.chunks():
            break
    finished = await channel.end(call)
    assert finished.done.status == 137


async def test_a_stream_left_after_its_command_ended_is_over_too(channel: Channel):
    """What the window does not hold is in the pipe of a command that is gone."""
    async with channel.streaming(Command(("head", "-c", str((1 << 20) + 30_000), "/dev/zero"))) as call:
        async with asyncio.timeout(10):
            while (await channel.peek(call)).done.running:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await call.wait()


async def test_the_runner_takes_what_it_is_sent_and_sends_what_is_taken(channel: Channel):
    """A reader that is slow to take output slows the command, not the memory of either side."""
    received = 0
    async with channel.streaming(Command(("head", "-c", "20000000", "/dev/zero"))) as call:
        async for chunk in call.chunks():
            received += len(chunk)
            await asyncio.sleep(0.001)
    assert received == 20_000_000


async def test_more_commands_than_the_runner_takes_are_refused_as_results(channel: Channel):
    commands = [asyncio.create_task(channel.run(Command(("sleep", "1000")))) for _ in range(256)]
    await until(lambda: len(channel._calls) == 256)
    refused = await channel.run(Command(("echo", "one too many")))
    assert refused.done.status == 126
    assert b"cannot start a process" in refused.err
    for command in commands:
        command.cancel()
    await asyncio.gather(*commands, return_exceptions=True)
    async with asyncio.timeout(20):
        while (await channel.run(Command(("echo", "fine")))).out != b"fine\n":
            continue


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(out=st.binary(max_size=3000), err=st.binary(max_size=3000), head=st.integers(0, 700), tail=st.integers(0, 700))
def test_head_and_tail_are_kept_for_any_output_and_limits(out: bytes, err: bytes, head: int, tail: int, tmp_path: Path):
    (tmp_path / "out").write_bytes(out)
    (tmp_path / "err").write_bytes(err)

    async def run() -> None:
        runner = str(runner_path(platform.machine()))
        launched = await launch(Program((runner,), runner))
        text = "cat out; cat err >&2"
        environment = {"PATH": os.environ["PATH"]}
        command = Command((text,), Run.SHELL, environment, folder=str(tmp_path), head=head, tail=tail)
        finished = await launched.channel.run(command)
        await launched.end()
        done = finished.done
        check(finished.out, out, done.out_omitted, done.out_cut_at)
        check(finished.err, err, done.err_omitted, done.err_cut_at)

    def check(kept: bytes, whole: bytes, omitted: int, cut_at: int) -> None:
        assert omitted == max(0, len(whole) - head - tail)
        assert kept == (whole[:head] + whole[len(whole) - tail :] if omitted else whole)
        assert not omitted or cut_at == head

    asyncio.run(run())
