"""Fixtures of the tests of engine clients."""

import socket

import aiohttp
import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tests.atroposlib.envs.server_handling.proxies import Proxy, serving_proxy
from tests.atroposlib.envs.server_handling.real_engines import serving_vllm


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def vllm(tmp_path_factory):
    """The URL of a real vLLM over the shipped policy, one for all tests."""
    with serving_vllm(tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url


@pytest.fixture
async def start_proxy():
    """Start a capture proxy over a scripted engine."""
    stack = []

    async def run(replies=(), default="Hm.", settings=None, **engine_settings):
        engine = ScriptedServer(replies, default=default, **engine_settings)
        context = serving_proxy(ServerManager([engine]), engine.tokenizer, **(settings or {}))
        url = await context.__aenter__()
        http = aiohttp.ClientSession()
        stack.extend([context, http])
        return Proxy(engine, url, http)

    yield run
    for context in reversed(stack):
        await context.__aexit__(None, None, None)
