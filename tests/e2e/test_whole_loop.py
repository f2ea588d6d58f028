"""Server, trainer with its engine and an environment with real boxes, as programs; and every token accounted for."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs.server_handling.certificate import digest
from atroposlib.wire import IGNORED_MASK
from tests.atroposlib.api.serving import ServerProcess
from tests.e2e.programs import module
from tests.e2e.test_drills import running
from tests.environments.conftest import require
from trainer.http import JsonClient
from trainer.policy import TINY, load_policy

ENVIRONMENT = "environments.terminal_test_env.terminal_test_env"
STEPS, GROUP, SEQUENCES = 2, 4, 8
NOT_SAMPLED = 1.0
"""What stands for a logprob where nothing was sampled."""
GAP = 1e-3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_trained_is_what_the_engine_sampled(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = ServerProcess("--store", str(tmp_path / "queue.sqlite"))
    server.start()
    trainer = module(
        *("trainer.grpo", "--model", TINY, "--vllm-port", port, "--atropos-url", server.url, "--threads", "1"),
        *("--training-steps", str(STEPS), "--save-path", str(tmp_path / "trainer"), "--seed", "0", "--lr", "3e-4"),
        *("--batch-size", str(SEQUENCES), "--gradient-accumulation-steps", "1", "--checkpoint-interval", str(STEPS)),
    )
    environment = module(
        *(ENVIRONMENT, "serve", "--openai.base_url", f"http://127.0.0.1:{port}/v1"),
        *("--env.rollout_server_url", server.url, "--env.terminal_backend", require("auto")),
        *("--env.group_size", str(GROUP), "--env.max_num_workers", "4", "--env.use_wandb", "false"),
        *("--env.data_path_to_save_groups", str(tmp_path / "groups.jsonl")),
    )
    try:
        with running(trainer, tmp_path, tmp_path) as training, running(environment, tmp_path, tmp_path) as collecting:
            assert training.process.wait(200) == 0
            assert collecting.process.wait(60) == 0
            assert collecting.owner.left() == []
        status = JsonClient(server.url).get("/status").body
    finally:
        server.kill()
    assert status["current_step"] == STEPS
    assert (status["groups_dropped"], status["groups_refused"]) == ({}, {})
    check_metrics(lines(tmp_path / "trainer" / "metrics.jsonl"))
    check_groups(lines(tmp_path / "groups.jsonl"))


def check_metrics(metrics: list[dict[str, Any]]) -> None:
    """The trainer left nothing out, and the engine serves what it trains."""
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    for line in metrics:
        assert line["train/left_out"] == 0
        assert line["train/sequences"] == SEQUENCES
        assert line["train/logprob_gap"] < GAP
        assert line["policy/version"] == line["step"]


def check_groups(groups: list[dict[str, Any]]) -> None:
    """Ids, masks, logprobs and certificates agree with each other, with the messages, and with the weights."""
    policy = load_policy(TINY)
    rescored = 0
    for group in groups:
        assert len(group["tokens"]) == len(group["scores"]) == len(group["overrides"]) == GROUP
        for tokens, masks, logprobs, override in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], group["overrides"], strict=True
        ):
            certificate = override["certificate"]
            sampled = [i for i, mask in enumerate(masks) if mask != IGNORED_MASK]
            assert len(tokens) == len(masks) == len(logprobs)
            assert all(masks[i] == tokens[i] and logprobs[i] <= 0 for i in sampled)
            assert all(logprobs[i] == NOT_SAMPLED for i in set(range(len(tokens))) - set(sampled))
            assert certificate["sampled_tokens"] == len(sampled)
            assert certificate["digest"] == digest(tokens, masks, logprobs)
            if certificate["policy_versions"] == ["0"]:
                expected = log_probabilities(policy.model, tokens)
                assert max(abs(expected[i] - logprobs[i]) for i in sampled) < GAP
                rescored += 1
    assert rescored >= SEQUENCES


def log_probabilities(model: Any, tokens: list[int]) -> list[float]:
    """Of each token after those before it, by the untrained policy; 0 for the first."""
    import torch

    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].float()
    return [0.0, *logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()]
