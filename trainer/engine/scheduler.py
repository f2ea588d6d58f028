"""The engine: one thread that owns the model, a bounded line before it, and what may happen between two steps.

Everything that touches the model or the batch runs on that thread. Callers get a future; cancelling it takes the
sequence out of the batch before the next token. Pausing follows vLLM's three modes:

- ``abort``: end what runs and waits as it stands; ``wait``: finish it; ``keep``: freeze it where it is.

In all three what arrives while the engine is paused stays in line until ``resume``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from trainer.config import LogprobsMode
from trainer.engine.sampler import BatchSampler
from trainer.engine.sampling import SamplingParams
from trainer.engine.sequence import Completion, Sequence, end_token_ids
from trainer.errors import EngineBusy, EngineFailed, InvalidRequest, UsageError

logger = logging.getLogger(__name__)

PauseMode = Literal["abort", "wait", "keep"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class EngineConfig:
    """Limits of one engine. ``max_model_len`` None: what the model's positions and the cache allow."""

    max_model_len: int | None = None
    max_num_seqs: int = 64
    """How many sequences run at once."""
    max_waiting: int = 4096
    """How many more may stand in line; then requests are refused with 503."""
    kv_cache_bytes: int = 1 << 30
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None


class Engine:
    """Serves one policy. ``start`` it once, ``close`` it once; every public method may be called from any thread."""

    def __init__(self, model: Any, tokenizer: Any, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._sampler = BatchSampler(
            model,
            max_rows=self.config.max_num_seqs,
            cache_bytes=self.config.kv_cache_bytes,
            mode=self.config.logprobs_mode,
            seed=self.config.seed,
        )
        self.max_model_len = self._allowed_length()
        text_config = model.config.get_text_config()
        self.vocab_size: int = text_config.vocab_size
        generation = getattr(model, "generation_config", None)
        self._end_ids = end_token_ids(
            tokenizer.eos_token_id, text_config.eos_token_id, getattr(generation, "eos_token_id", None)
        )
        self._state = threading.Condition()
        self._arrived: deque[Sequence] = deque()
        self._between_steps: deque[Callable[[], None]] = deque()
        self._paused = False
        self._draining = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- life ----

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Fail what runs and waits, and end the thread."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    # ---- requests ----

    def submit(self, prompt: list[int], params: SamplingParams) -> Future[Completion]:
        """Queue one completion of ``prompt``.

        Raises: InvalidRequest (bad ids, too long), EngineBusy (the line is full), EngineFailed (closed).
        """
        self._check(prompt, params)
        generator = None
        if params.seed is not None:
            generator = torch.Generator(device=next(self.model.parameters()).device).manual_seed(params.seed)
        decoder = self._decoder() if params.stop else None
        sequence = Sequence(prompt, params, self._end_ids, decoder, generator=generator)
        with self._state:
            if self._closed:
                raise EngineFailed("The engine was closed.")
            if len(self._arrived) + len(self._sampler.waiting) >= self.config.max_waiting:
                raise EngineBusy(f"{self.config.max_waiting} requests wait already; try again later.")
            self._arrived.append(sequence)
            self._state.notify_all()
        return sequence.future

    def _decoder(self) -> Any:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidRequest("This tokenizer cannot decode token by token, which stop strings need.", "stop")
        return backend

    def _check(self, prompt: list[int], params: SamplingParams) -> None:
        if not prompt:
            raise InvalidRequest("The prompt is empty; give at least one token.", "prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.vocab_size)
            raise InvalidRequest(f"Token id {bad} is out of vocabulary (0..{self.vocab_size - 1}).", "prompt")
        if params.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {params.max_tokens}.", "max_tokens")
        if len(prompt) + params.max_tokens > self.max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
                f"{params.max_tokens} output tokens and your prompt contains {len(prompt)} input tokens, for a total "
                f"of {len(prompt) + params.max_tokens} tokens. Shorten the prompt or ask for fewer output tokens.",
                "input_tokens" if len(prompt) >= self.max_model_len else "max_tokens",
            )

    # ---- control ----

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def version(self) -> str:
        return self._sampler.version

    def load(self) -> tuple[int, int]:
        """How many sequences run and how many wait."""
        return self._sampler.active_count, len(self._sampler.waiting) + len(self._arrived)

    def pause(self, mode: PauseMode = "abort") -> None:
        """Stop sampling; returns when nothing is being computed any more."""
        if mode == "abort":
            self._do(self._abort_and_pause)
        elif mode == "keep":
            self._do(self._freeze)
        else:
            self._drain()

    def resume(self) -> None:
        with self._state:
            self._paused = self._draining = False
            self._state.notify_all()

    def reset_prefix_cache(self) -> None:
        self._do(self._sampler.forget)

    def set_version(self, version: str) -> None:
        """Name the weights as they are now; tokens sampled from here on carry the name."""
        self._do(partial(self._set_version, version))

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: str | None = None) -> None:
        """Copy ``weights`` over the engine's own between two steps, in place, and forget what was computed with the
        old ones.

        Raises: InvalidRequest, where names or shapes are not this model's; the weights are then untouched.
        """
        targets = dict(self.model.named_parameters())
        missing, unknown = targets.keys() - weights.keys(), weights.keys() - targets.keys()
        if missing or unknown:
            raise InvalidRequest(
                f"The weights are not this model's: missing {sorted(missing)[:3]}, unknown {sorted(unknown)[:3]}."
            )
        for name, target in targets.items():
            if target.shape != weights[name].shape:
                raise InvalidRequest(
                    f"Weight {name!r} has shape {tuple(weights[name].shape)}; the model's is {tuple(target.shape)}."
                )
        self._do(partial(self._copy_weights, targets, weights, version))

    def reload_weights(self, folder: Path, version: str | None = None) -> None:
        """Load the weights of a saved model of the same architecture.

        Raises: InvalidRequest, where ``folder`` holds no such model.
        """
        self.update_weights(read_weights(folder, self.model), version)

    def _set_version(self, version: str) -> None:
        self._sampler.version = version

    def _copy_weights(
        self, targets: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], version: str | None
    ) -> None:
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(weights[name])
        self._sampler.forget()
        if version is not None:
            self._set_version(version)

    def _drain(self) -> None:
        with self._state:
            self._draining = not self._paused
            self._state.notify_all()
            self._state.wait_for(lambda: not self._draining or self._closed)

    def _abort_and_pause(self) -> None:
        self._sampler.waiting.extend(self._take_arrived())
        self._sampler.abort_all()
        self._freeze()

    def _freeze(self) -> None:
        with self._state:
            self._paused = True

    def _do(self, job: Callable[[], _T]) -> _T:
        """Run ``job`` on the engine's thread between two steps and return what it returns."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except Exception as error:  # noqa: BLE001 nothing is swallowed: the caller, who waits, gets it raised
                done.set_exception(error)

        with self._state:
            if self._closed:
                raise EngineFailed("The engine was closed.")
            self._between_steps.append(run)
            self._state.notify_all()
        return done.result()

    # ---- the thread ----

    def _run(self) -> None:
        while self._wait_for_work():
            for job in self._take_jobs():
                job()
            if not self._paused:
                self._step()
        self._sampler.waiting.extend(self._take_arrived())
        self._sampler.fail_all(EngineFailed("The engine was closed."))
        for job in self._take_jobs():
            job()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False once the engine is closed."""
        with self._state:
            self._note_drained()
            self._state.wait_for(lambda: self._closed or self._between_steps or self._may_step())
            return not self._closed

    def _may_step(self) -> bool:
        return not self._paused and bool(self._sampler.busy or (self._arrived and not self._draining) or self._draining)

    def _note_drained(self) -> None:
        if self._draining and not self._sampler.busy:
            self._paused, self._draining = True, False
            self._state.notify_all()

    def _step(self) -> None:
        if not self._draining:
            self._sampler.waiting.extend(self._take_arrived())
        try:
            self._sampler.step()
        except Exception as error:
            logger.exception("The model failed; %d requests get the error.", self._sampler.active_count)
            self._sampler.fail_all(EngineFailed(f"The model failed: {type(error).__name__}: {error}"))

    def _take_arrived(self) -> list[Sequence]:
        with self._state:
            taken = list(self._arrived)
            self._arrived.clear()
            return taken

    def _take_jobs(self) -> list[Callable[[], None]]:
        with self._state:
            jobs = list(self._between_steps)
            self._between_steps.clear()
            return jobs

    def _allowed_length(self) -> int:
        """The longest sequence: what was asked for, or what model and memory allow. Raises: UsageError."""
        asked, longest = self.config.max_model_len, self._sampler.longest
        if asked is not None and asked > longest:
            raise UsageError(
                f"--max-model-len {asked} is more than the {longest} tokens this model can attend to here."
            )
        length = asked or longest
        if asked is not None and not self._sampler.fits_alone(length):
            raise UsageError(
                f"One sequence of {length} tokens does not fit into {self.config.kv_cache_bytes} bytes of cache: raise "
                "--kv-cache-gb or lower --max-model-len."
            )
        while not self._sampler.fits_alone(length):
            length //= 2
        if length < longest and asked is None:
            logger.warning("The cache holds %d tokens; sequences are limited to that (--kv-cache-gb).", length)
        return length


def read_weights(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    """Parameters by name of the model saved in ``folder``, loaded as ``model``'s class loads them.

    Raises: InvalidRequest, where ``folder`` holds no such model.
    """
    if not (folder / "config.json").is_file():
        raise InvalidRequest(f"{folder} holds no saved model (no config.json).", "weights_path")
    try:
        loaded = type(model).from_pretrained(folder, dtype=model.dtype, local_files_only=True, use_safetensors=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidRequest(f"No weights could be read from {folder}: {error}", "weights_path") from error
    return dict(loaded.named_parameters())
