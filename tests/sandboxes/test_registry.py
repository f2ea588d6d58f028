"""Names of backends, and what ``auto`` chooses."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sandboxes import (
    Sandbox,
    SandboxSpec,
    SandboxUnavailable,
    UnknownBackend,
    backends,
    check_backend,
    open_sandbox,
    register_backend,
    registry,
    start_sandbox,
)
from tests.sandboxes.boxes import require


class Started(Exception):
    """Tells which backend was asked, and for what."""


def backend_called(name: str, problem: str | None = None) -> None:
    async def start(spec: SandboxSpec) -> Sandbox:
        raise Started(name, spec)

    def check() -> None:
        if problem:
            raise SandboxUnavailable(problem)

    register_backend(name, start, check=check)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


async def started(backend: str, spec: SandboxSpec | None = None) -> str:
    with pytest.raises(Started) as raised:
        await start_sandbox(backend, spec)
    return raised.value.args[0]


def test_the_projects_own_backends_are_listed_after_auto():
    assert backends() == ["auto", "docker", "bubblewrap", "local"]


@pytest.mark.parametrize("name", ["", "Docker", "podman"])
async def test_another_name_is_an_error_with_the_list(name: str):
    with pytest.raises(UnknownBackend, match="auto, docker, bubblewrap, local"):
        check_backend(name)
    with pytest.raises(ValueError, match="there are"):
        await start_sandbox(name)


async def test_a_registered_backend_is_started_by_its_name():
    backend_called("cloud")
    assert "cloud" in backends()
    check_backend("cloud")
    assert await started("cloud") == "cloud"
    with pytest.raises(Started):
        async with open_sandbox("cloud", SandboxSpec(pids=7)):
            pass


async def test_a_backend_may_replace_one_of_the_projects():
    backend_called("docker")
    assert await started("docker") == "docker"


def test_auto_is_no_backend():
    with pytest.raises(ValueError, match="cannot be one"):
        register_backend("auto", started)


async def test_auto_takes_namespaces_where_they_work():
    backend_called("bubblewrap")
    backend_called("docker")
    assert await started("auto") == "bubblewrap"


async def test_auto_takes_docker_where_namespaces_do_not_work():
    backend_called("bubblewrap", "no namespaces")
    backend_called("docker")
    check_backend("auto")
    assert await started("auto") == "docker"


ONLY_DOCKERS = [SandboxSpec(image="task:1"), SandboxSpec(build=Path("task")), SandboxSpec(network="bridge")]


@pytest.mark.parametrize("spec", ONLY_DOCKERS)
async def test_auto_is_docker_for_what_namespaces_cannot_give(spec: SandboxSpec):
    backend_called("bubblewrap")
    backend_called("docker")
    check_backend("auto", spec)
    assert await started("auto", spec) == "docker"


@pytest.mark.parametrize("spec", ONLY_DOCKERS)
def test_auto_says_what_docker_lacks_where_nothing_else_would_do(spec: SandboxSpec):
    backend_called("bubblewrap")
    backend_called("docker", "needs a daemon")
    with pytest.raises(SandboxUnavailable, match=r"^needs a daemon"):
        check_backend("auto", spec)


async def test_auto_is_never_local_and_says_what_each_backend_lacks():
    backend_called("bubblewrap", "needs user namespaces")
    backend_called("docker", "needs a daemon")
    backend_called("local")
    with pytest.raises(SandboxUnavailable, match=r"needs user namespaces.*needs a daemon"):
        await start_sandbox("auto")
    with pytest.raises(SandboxUnavailable):
        check_backend("auto")


class PluginModule:
    checked = False

    @staticmethod
    async def start(spec: SandboxSpec) -> Sandbox:
        raise Started("plugin", spec)

    @classmethod
    def check(cls) -> None:
        cls.checked = True


async def test_an_installed_package_may_bring_a_backend(monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("plugin", f"{__name__}:PluginModule", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert "plugin" in backends()
    check_backend("plugin")
    assert sys.modules[__name__].PluginModule.checked
    assert await started("plugin") == "plugin"


def test_importing_the_package_loads_no_backend():
    code = "import sys, sandboxes; print(sorted({'docker', 'sandboxes.docker', 'sandboxes.local'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_a_list_of_hosts_that_a_backend_cannot_enforce_is_refused_by_name():
    require("local")
    with pytest.raises(SandboxUnavailable, match=r"example\.org"):
        await start_sandbox("local", SandboxSpec(network=("example.org",)))
