"""The programs of a run on this machine, ready to be started: each on its port, each ready when that answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, raise_signal, signal

from environments.local_run.processes import ChildSpec, answers


def engine(model: str, port: int, *flags: str) -> ChildSpec:
    """The embedded engine over a model: a folder, a name of the hub, or ``tiny``."""
    argv = [sys.executable, "-m", "trainer.serve", "--model", model, "--port", str(port), *flags]
    return ChildSpec("engine", argv, ready=answers(f"http://127.0.0.1:{port}/health"))


def trajectory_server(port: int, store: Path) -> ChildSpec:
    """The trajectory server, which keeps its groups in ``store``."""
    argv = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", str(port), "--store", str(store)]
    return ChildSpec("server", argv, ready=answers(f"http://127.0.0.1:{port}/status"))


def trainer(server_port: int, folder: Path, *flags: str, engine_port: int | None = None) -> ChildSpec:
    """The trainer, which writes to ``folder``. With ``engine_port`` it serves its policy there."""
    argv = [
        *(sys.executable, "-m", "trainer.grpo", "--save-path", str(folder)),
        *("--atropos-url", f"http://127.0.0.1:{server_port}"),
        *(("--vllm-port", str(engine_port)) if engine_port is not None else ()),
        *flags,
    ]
    ready = None if engine_port is None else answers(f"http://127.0.0.1:{engine_port}/health")
    return ChildSpec("trainer", argv, ready=ready)


def environment(module: str, mode: str, engine_url: str, server_port: int, *flags: str) -> ChildSpec:
    """An environment in one of its modes."""
    argv = [
        *(sys.executable, "-m", module, mode),
        *("--openai.base_url", engine_url),
        *("--env.rollout_server_url", f"http://127.0.0.1:{server_port}"),
        *flags,
    ]
    return ChildSpec(f"environment_{mode}", argv)


def newest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a trainer. Raises: FileNotFoundError where there is none."""
    found = sorted(folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if not found:
        raise FileNotFoundError(f"the trainer left no checkpoint in {folder}")
    return found[-1]


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: nothing is left behind."""
    previous = signal(SIGTERM, lambda *_: raise_signal(SIGINT))
    try:
        yield
    finally:
        signal(SIGTERM, previous)
