"""The hosts that a box may reach: those of its list, by HTTP and by tunnel, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from sandboxes import Sandbox, SandboxSpec, SandboxStartError, open_sandbox, start_sandbox
from sandboxes.allow_list import Host, HostProxy
from tests.sandboxes.boxes import CLOSED_BACKENDS, require

TUNNEL = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
with socket.create_connection((proxy.hostname, proxy.port), timeout=20) as s:
    s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    print(s.recv(65536).split(b"\\r\\n")[0].decode())
    s.sendall(b"GET /in-tunnel HTTP/1.1\\r\\n\\r\\n")
    print(s.recv(65536).decode())
"""


class Site:
    """A web server of this machine that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


@pytest.fixture(params=CLOSED_BACKENDS)
async def box(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[Sandbox]:
    async with open_sandbox(require(request.param), SandboxSpec(network=(f"localhost:{site.port}",))) as box:
        yield box


async def fetch(box: Sandbox, url: str) -> str:
    script = (
        "import sys, urllib.request, urllib.error\n"
        "try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
    )
    # `localhost` is the box itself to most programs; here it stands for a host outside.
    result = await box.exec(["python3", "-c", script, url], env={"NO_PROXY": "", "no_proxy": ""}, timeout_s=60)
    return result.output.strip()


async def test_a_listed_host_is_reached(box: Sandbox, site: Site):
    assert await fetch(box, f"http://localhost:{site.port}/path?a=1") == "hello"
    head = site.asked[0]
    assert head.startswith("GET /path?a=1 HTTP/1.1\r\n")
    assert f"\r\nHost: localhost:{site.port}\r\n" in head


async def test_a_tunnel_leads_to_a_listed_host(box: Sandbox, site: Site):
    said = (await box.exec(["python3", "-c", TUNNEL, f"localhost:{site.port}"], timeout_s=60)).output
    assert "200 Connection established" in said
    assert "hello" in said
    assert site.asked == ["GET /in-tunnel HTTP/1.1\r\n\r\n"]


async def test_another_host_is_refused_by_name_whatever_the_way(box: Sandbox, site: Site):
    assert (await fetch(box, "http://example.org/")).startswith("403 example.org:80 is not among the hosts")
    assert (await fetch(box, f"http://127.0.0.1:{site.port}/")).startswith("403 127.0.0.1:")
    said = (await box.exec(["python3", "-c", TUNNEL, "example.org:443"], timeout_s=60)).output
    assert "403" in said
    assert site.asked == []


async def test_nothing_is_reached_past_the_proxy(box: Sandbox, site: Site):
    assert (await box.exec("ls /sys/class/net 2>/dev/null || grep : /proc/net/dev | cut -d: -f1")).output.split() == [
        "lo"
    ]
    direct = f"import socket; socket.create_connection(('127.0.0.1', {site.port}), timeout=5)"
    assert b"refused" in (await box.exec(["python3", "-c", direct], timeout_s=60)).stderr
    assert site.asked == []


async def test_the_way_out_ends_with_the_agents_processes(box: Sandbox, site: Site):
    await box.kill_all()
    assert "refused" in await fetch(box, f"http://localhost:{site.port}/")


@pytest.mark.parametrize("backend", CLOSED_BACKENDS)
async def test_what_is_no_host_is_refused_and_leaves_no_box(backend: str):
    with pytest.raises(SandboxStartError, match="'http://a/b' is no host"):
        await start_sandbox(require(backend), SandboxSpec(network=("http://a/b",)))


@pytest.mark.parametrize(
    ("entry", "name", "port", "allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org:8080", "pypi.org", 8080, True),
        ("pypi.org:8080", "pypi.org", 443, False),
        ("pypi.org", "evilpypi.org", 443, False),
        ("pypi.org", "files.pypi.org", 443, False),
        ("*.pypi.org", "files.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("*.pypi.org", "169.254.169.254\0.pypi.org", 443, False),
        ("*.pypi.org", "evil.org\\.pypi.org", 443, False),
        ("*.pypi.org", ".pypi.org", 443, False),
        ("*.pypi.org", "a.b_c-d.pypi.org", 443, True),
        ("PyPI.org", "pypi.org", 443, True),
        ("[::1]:80", "::1", 80, True),
    ],
)
def test_an_entry_allows_its_own_name_and_ports(entry: str, name: str, port: int, allowed: bool):
    assert Host.parse(entry).allows(name, port) is allowed


@pytest.mark.parametrize(
    "said", [b"nonsense\r\n\r\n", b"GET /relative HTTP/1.1\r\n\r\n", b"GET ftp://a/ HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_request_to_a_proxy_is_answered_so(said: bytes):
    proxy = HostProxy(["localhost"])
    reader, writer = await proxy.connect()
    writer.write(said)
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await proxy.close()


async def test_a_name_that_ends_early_for_the_resolver_leads_nowhere(site: Site):
    """Behind a NUL a name may end as it likes."""
    proxy = HostProxy([f"*.example.org:{site.port}"])
    reader, writer = await proxy.connect()
    writer.write(f"CONNECT 127.0.0.1\0.example.org:{site.port} HTTP/1.1\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")
    writer.close()
    await proxy.close()


@pytest.mark.parametrize("entry", ["*", "*.", "a*.org", "*.*.org", "", "a/b", "user@a"])
def test_an_entry_that_could_match_nothing_is_refused(entry: str):
    with pytest.raises(ValueError, match="is no host"):
        Host.parse(entry)


async def test_what_one_box_holds_open_and_looks_up_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch):
    looking_up = most = 0

    async def look_up(name: str, *_: object, **__: object) -> list[object]:
        nonlocal looking_up, most
        looking_up += 1
        most = max(most, looking_up)
        await asyncio.sleep(0)
        looking_up -= 1
        raise socket.gaierror(f"no such name: {name}")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    proxy = HostProxy(["*.example.org"])
    ways = [await proxy.connect() for _ in range(256)]
    with pytest.raises(ConnectionRefusedError, match="256"):
        await proxy.connect()
    for number, (_, writer) in enumerate(ways):
        writer.write(f"CONNECT {number}.example.org:443 HTTP/1.1\r\n\r\n".encode())
    for reader, writer in ways:
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()
    assert 0 < most <= 2
    await proxy.close()


def test_this_machine_resolves_the_name_that_these_tests_use():
    assert socket.gethostbyname("localhost").startswith("127.")
