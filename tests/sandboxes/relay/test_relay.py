"""A port in a box that leads to one place outside, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandboxes import SandboxSpec, SandboxUnavailable, open_sandbox
from sandboxes.base import Sandbox
from sandboxes.local import LocalSandbox
from sandboxes.relay import Connect, open_relay
from tests.sandboxes.boxes import BACKENDS, CLOSED_BACKENDS, require

CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as s:
    s.sendall(sys.stdin.buffer.read())
    s.shutdown(socket.SHUT_WR)
    got = b""
    while piece := s.recv(65536):
        got += piece
sys.stdout.buffer.write(got)
"""


@asynccontextmanager
async def answering(answer: bytes | None = None) -> AsyncIterator[Connect]:
    """A place outside: it reads all that comes and answers with it reversed, or with ``answer``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(-1)
        writer.write(said[::-1] if answer is None else answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield lambda: asyncio.open_connection("127.0.0.1", port)


async def ask(box: Sandbox, port: int, said: bytes) -> bytes:
    result = await box.exec(["python3", "-c", CLIENT, str(port)], stdin=said, timeout_s=60, output_limit=10_000_000)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_is_sent_arrives_and_the_answer_comes_back(backend: str):
    spec = SandboxSpec()
    async with open_sandbox(require(backend), spec) as box, answering() as connect:
        async with open_relay(box, connect) as port:
            assert await ask(box, port, b"hello") == b"olleh"
            large = bytes(range(256)) * 8_000  # several windows in both directions
            assert await ask(box, port, large) == large[::-1]
        left = await box.exec("ls -A /workspace", timeout_s=30)
        assert left.output == ""


async def test_a_backend_without_pipes_is_refused_by_name_and_nothing_is_put_into_its_box(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(LocalSandbox, "pipe", Sandbox.pipe)
    async with open_sandbox("local") as box, answering() as connect:
        with pytest.raises(SandboxUnavailable, match=r"'local' .*no Sandbox\.pipe"):
            async with open_relay(box, connect):
                pass
        assert (await box.exec("ls -A", timeout_s=30)).output == ""


async def test_many_connections_at_once_do_not_mix():
    async with open_sandbox("local") as box, answering() as connect, open_relay(box, connect) as port:
        said = [str(number).encode() * 50_000 for number in range(6)]
        answers = await asyncio.gather(*(ask(box, port, each) for each in said))
    assert answers == [each[::-1] for each in said]


@pytest.mark.parametrize("backend", CLOSED_BACKENDS)
async def test_the_box_reaches_nothing_else(backend: str):
    async with open_sandbox(require(backend)) as box, answering() as connect, open_relay(box, connect) as port:
        outside = await connect()
        elsewhere = outside[1].get_extra_info("peername")[1]
        outside[1].close()
        assert elsewhere != port
        tried = await box.exec(["python3", "-c", CLIENT, str(elsewhere)], timeout_s=30)
        assert tried.exit_code != 0
        assert "refused" in tried.output


async def test_a_place_that_is_gone_ends_the_connection_and_not_the_relay():
    async def refuse() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionRefusedError("nobody there")

    async with open_sandbox("local") as box, open_relay(box, refuse) as port:
        assert await ask(box, port, b"") == b""
        assert await ask(box, port, b"") == b""


async def test_the_relay_ends_with_its_block():
    async with open_sandbox("local") as box, answering(b"") as connect:
        async with open_relay(box, connect) as port:
            pass
        tried = await box.exec(["python3", "-c", CLIENT, str(port)], timeout_s=30)
        assert tried.exit_code != 0


IN_ITS_NAME = """
import glob, os, signal, struct
def frame(number, kind, data=b""):
    return struct.pack("<IIB", number, len(data), kind) + data
def parent(program):
    return "/proc/" + open(program + "/stat").read().rsplit(")", 1)[1].split()[1]
runner = parent(f"/proc/{os.getppid()}")
def is_ours(program):
    try:
        return ".relay-" in os.readlink(program + "/exe") and parent(parent(program)) == runner
    except OSError:  # another user's, or over
        return False
pid = next(filter(is_ours, glob.glob("/proc/[0-9]*")))
out = open(pid + "/fd/1", "wb", buffering=0)
OPEN, DATA, END, CLOSE = 2, 3, 4, 5
"""


async def stuck() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("flood", "reason"),
    [
        (
            "out.write(frame(9, OPEN)); [out.write(frame(9, DATA, bytes(65536))) for _ in range(8)]",
            "262144 bytes ahead",
        ),
        ("out.write(frame(9, OPEN) + frame(9, DATA) * 1000)", "a frame of nothing"),
        ("out.write(frame(9, OPEN) + frame(9, END) * 1000)", "after the end of a connection"),
        ("out.write(b''.join(frame(number, OPEN) for number in range(9, 1000)))", "connections at once"),
    ],
)
async def test_words_that_break_the_rules_end_the_relay_and_cost_no_memory(
    flood: str, reason: str, caplog: pytest.LogCaptureFixture
):
    async with open_sandbox("local") as box, open_relay(box, stuck):
        tried = await box.exec(["python3", "-c", IN_ITS_NAME + flood], timeout_s=30)
        assert tried.exit_code == 0, tried.output
        async with asyncio.timeout(20):
            while reason not in caplog.text:
                await asyncio.sleep(0.01)


async def test_connections_that_come_and_go_leave_nothing_though_the_relay_takes_nothing():
    """A task for each would stay until the relay reads that its connection is over."""
    churn = "os.kill(int(pid[6:]), signal.SIGSTOP)\n" + (
        "for number in range(9, 3009): out.write(frame(number, OPEN) + frame(number, CLOSE))\n"
        "out.write(frame(5000, OPEN))"
    )

    def carried() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith("relayed connection")]

    async with open_sandbox("local") as box, open_relay(box, stuck):
        tried = await box.exec(["python3", "-c", IN_ITS_NAME + churn], timeout_s=30)
        assert tried.exit_code == 0, tried.output
        async with asyncio.timeout(10):
            while carried() != ["relayed connection 5000"]:
                await asyncio.sleep(0.01)


async def test_a_frame_is_whole_though_its_connection_is_closed_while_it_is_sent():
    """Else what comes after it is taken for its rest."""
    half_sent = (
        "import socket, sys, time\n"
        "all = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(3)]\n"
        "for s in all: s.shutdown(socket.SHUT_WR); s.recv(1)\n"
        "os.kill(int(pid[6:]), signal.SIGSTOP); time.sleep(0.2)\n"  # three windows are more than what is on its way
        "for number in 1, 2, 3: out.write(frame(number, CLOSE))\n"
        "time.sleep(0.1); os.kill(int(pid[6:]), signal.SIGCONT)"
    )
    async with open_sandbox("local") as box, answering(bytes(5_000_000)) as connect, open_relay(box, connect) as port:
        tried = await box.exec(["python3", "-c", IN_ITS_NAME + half_sent, str(port)], timeout_s=30)
        assert tried.exit_code == 0, tried.output
        async with asyncio.timeout(10):
            assert len(await ask(box, port, b"x")) == 5_000_000
