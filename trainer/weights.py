"""Bringing new weights to the engine that samples, and checking that they arrived.

Two ways: into the engine of this process, tensor by tensor (``EmbeddedEngine``), or through a folder that an external
engine reads (``ExternalEngine``: vLLM, or ``trainer.serve``). In both the engine is paused around the change, so no
token is computed from a mixture of old and new weights; with mode ``wait`` no completion spans two versions either.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainer.batches import Sample
from trainer.checkpoints import saving
from trainer.engine.hosting import EngineHost
from trainer.engine.sampling import SamplingParams
from trainer.engine.scheduler import PauseMode
from trainer.errors import ServiceError
from trainer.http import JsonClient, Refused
from trainer.learner import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampled:
    """A short completion with the engine's own logprobs."""

    token_ids: list[int]
    logprobs: list[float]


class WeightSink(Protocol):
    """An engine whose weights the trainer sets."""

    def publish(self, model: Any, version: str) -> None:
        """Serve the weights of ``model`` from now on, under this name.

        Raises: ServiceError, EngineError; CheckpointError where there is no room for a copy of them.
        """

    def sample(self, prompt: Sequence[int], max_tokens: int) -> Sampled:
        """A completion at temperature 1 without filters. Raises: ServiceError, EngineError."""

    def close(self) -> None:
        """End what this object started."""


class EmbeddedEngine:
    """The engine of this process."""

    def __init__(self, host: EngineHost, mode: PauseMode) -> None:
        self._engine = host.engine
        self._host = host
        self._mode = mode

    def publish(self, model: Any, version: str) -> None:
        self._engine.pause(self._mode)
        try:
            self._engine.update_weights({n: p.detach() for n, p in model.named_parameters()}, version)
        finally:
            self._engine.resume()

    def sample(self, prompt: Sequence[int], max_tokens: int) -> Sampled:
        completion = self._engine.submit(list(prompt), SamplingParams(max_tokens=max_tokens)).result()
        return Sampled(completion.token_ids, completion.logprobs)

    def close(self) -> None:
        self._host.close()


class ExternalEngine:
    """An engine behind HTTP that loads weights from a folder which both sides see."""

    def __init__(self, client: JsonClient, folder: Path, mode: PauseMode, served_name: str | None = None) -> None:
        self._client = client
        self._folder = folder
        self._mode = mode
        self._name = served_name

    def publish(self, model: Any, version: str) -> None:
        # a new folder for every version: vLLM may have read the last one lazily
        path = self._folder / f"version_{version}"
        with saving(path):
            model.save_pretrained(path)
        with self._paused():
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(path.resolve())}}
            self._client.post("/collective_rpc", call)
            self._client.post("/reset_prefix_cache")
            self._name_version(version)
        for older in self._folder.glob("version_*"):
            if older != path:
                shutil.rmtree(older)

    def _name_version(self, version: str) -> None:
        try:
            self._client.post("/update_weight_version", {"new_version": version})
        except Refused as error:
            if error.status not in (404, 405):
                raise
            logger.warning("%s stamps no weight versions; samples will not tell their age.", self._client.base_url)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        try:
            self._client.post("/pause", mode=self._mode)
        except Refused as error:
            raise ServiceError(
                f"The engine does not let its weights be changed: {error}. vLLM has these routes when it is started "
                "with VLLM_SERVER_DEV_MODE=1 in its environment."
            ) from error
        try:
            yield
        finally:
            self._client.post("/resume")

    def sample(self, prompt: Sequence[int], max_tokens: int) -> Sampled:
        body = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if self._name:
            body["model"] = self._name
        choice = self._client.post("/v1/completions", body).body["choices"][0]
        if choice.get("token_ids") is None:
            raise ServiceError(f"{self._client.base_url} does not answer with token ids (return_token_ids).")
        return Sampled(choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def close(self) -> None:
        """Nothing: the engine was not started here."""


def logprob_gap(sink: WeightSink, learner: Learner, prompt: Sequence[int], max_tokens: int) -> float:
    """Largest difference between the engine's logprobs and the trainer's, over a completion that is sampled for it.

    Rounding alone makes it 1e-6 or so in float32; more means that the engine serves other weights than are trained.
    Raises: ServiceError, EngineError.
    """
    sampled = sink.sample(prompt, max_tokens)
    before, after = [0.0] * len(prompt), [0.0] * len(sampled.token_ids)
    return learner.largest_gap(
        Sample(
            tokens=[*prompt, *sampled.token_ids],
            trained=[False] * len(before) + [True] * len(after),
            sampled_logprobs=before + sampled.logprobs,
            advantages=before + after,
        )
    )
