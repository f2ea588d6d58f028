"""New weights reach the engine, in memory and through a folder, and a token never mixes two versions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny_model import make_model, make_tokenizer
from trainer.engine.hosting import EngineHost
from trainer.engine.sampling import SamplingParams
from trainer.engine.scheduler import Engine
from trainer.errors import InvalidRequest, ServiceError
from trainer.http import JsonClient
from trainer.learner import Learner, LearnerSettings
from trainer.weights import EmbeddedEngine, ExternalEngine, WeightSink, logprob_gap


def _sink(kind: str, host: EngineHost, folder: Path) -> WeightSink:
    if kind == "embedded":
        return EmbeddedEngine(host, "wait")
    return ExternalEngine(JsonClient(host.url), folder, "wait")


@pytest.fixture
def host() -> EngineHost:
    return EngineHost(Engine(make_model(), make_tokenizer()), ["policy"])


@pytest.mark.parametrize("kind", ["embedded", "external"])
def test_published_weights_are_served_under_their_version(kind: str, host: EngineHost, tmp_path: Path) -> None:
    host.start()
    sink = _sink(kind, host, tmp_path)
    for version in ("1", "2"):
        model = make_model(seed=int(version))
        sink.publish(model, version)
        assert host.engine.version == version
        assert not host.engine.paused
        assert logprob_gap(sink, Learner(model, LearnerSettings()), [5, 6, 7], 16) < 1e-4
        assert logprob_gap(sink, Learner(make_model(seed=9), LearnerSettings()), [5, 6, 7], 16) > 1e-2
    assert [path.name for path in tmp_path.iterdir()] == ["version_2"] * (kind == "external")
    host.close()


@pytest.mark.parametrize(("mode", "versions"), [("wait", ["0"]), ("keep", ["0", "1"]), ("abort", ["0"])])
def test_running_completions_finish_first_or_go_on_with_the_new_weights(
    mode: str, versions: list[str], host: EngineHost
) -> None:
    host.start()
    running = host.engine.submit([5], SamplingParams(max_tokens=300, ignore_eos=True))
    while host.engine.load()[0] == 0:
        pass
    EmbeddedEngine(host, mode).publish(make_model(seed=1), "1")
    completion = running.result(timeout=30)
    assert [span.version for span in completion.versions] == versions
    assert completion.finish_reason == ("abort" if mode == "abort" else "length")
    host.close()


def test_weights_of_another_model_are_refused_and_sampling_goes_on(host: EngineHost) -> None:
    host.start()
    sink = EmbeddedEngine(host, "wait")
    with pytest.raises(InvalidRequest, match="shape"):
        sink.publish(make_model(vocab_size=300), "1")
    assert host.engine.version == "0"
    assert len(sink.sample([5], 4).token_ids) >= 1
    host.close()


def test_tied_embeddings_are_published_as_well(tmp_path: Path) -> None:
    host = EngineHost(Engine(make_model(tied=True), make_tokenizer()), ["policy"])
    host.start()
    new = make_model(seed=1, tied=True)
    for sink in (EmbeddedEngine(host, "wait"), ExternalEngine(JsonClient(host.url), tmp_path, "keep")):
        sink.publish(new, "1")
        torch.testing.assert_close(host.engine.model.state_dict(), new.state_dict())
    host.close()


async def test_engine_without_routes_for_weights_is_an_error_that_says_how_to_get_them(tmp_path: Path) -> None:
    from aiohttp import web

    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = site._server.sockets[0].getsockname()
    sink = ExternalEngine(JsonClient(f"http://{host}:{port}"), tmp_path, "wait")
    with pytest.raises(ServiceError, match="VLLM_SERVER_DEV_MODE=1"):
        await asyncio.to_thread(sink.publish, make_model(), "1")
    await runner.cleanup()
