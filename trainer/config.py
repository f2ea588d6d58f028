"""What one training run is made of, after the command line was read and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from trainer.errors import UsageError

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
"""Named as vLLM names them: before, or after temperature and filters (see ``engine.sampling``)."""
WeightSync = Literal["wait", "keep", "abort"]
"""What completions that run do while the weights change: finish first, freeze, or end as they are."""


@dataclass(frozen=True)
class ServingConfig:
    """How an embedded engine is served."""

    host: str = "127.0.0.1"
    port: int = 9001
    names: tuple[str, ...] = ("tiny",)
    """What it answers to."""
    tool_call_parser: str | None = "hermes"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    kv_cache_gb: float = 1.0
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "port", "between 0 and 65535", self.port)
        _require(self.max_num_seqs >= 1, "max_num_seqs", "at least 1", self.max_num_seqs)
        _require(self.kv_cache_gb > 0, "kv_cache_gb", "above 0", self.kv_cache_gb)
        _require(
            self.max_model_len is None or self.max_model_len >= 2, "max_model_len", "at least 2", self.max_model_len
        )


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of the loop. Field names are those of the flags."""

    model: str = "tiny"
    device: str = "cpu"
    dtype: str = "float32"
    """What is computed in. Weights and optimizer are float32 throughout."""
    threads: int | None = None
    """CPU threads of torch, for training and sampling together; None: torch's own choice."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    lr: float = 1e-5
    warmup_steps: int = 0
    optimizer: str = "adamw"
    training_steps: int = 10
    batch_size: int = 2
    """Sequences per forward pass."""
    gradient_accumulation_steps: int = 32
    seq_len: int = 2048
    epochs_per_batch: int = 1
    clip_eps: float = 0.2
    clip_eps_high: float | None = None
    """None: the same as below."""
    kl_coef: float = 0.0
    distill_coef: float = 1.0
    temperature: float = 1.0
    """Sampling temperature of groups that tell none; it matters only with ``processed_logprobs``."""
    save_path: Path = Path("trained_model_checkpoints")
    checkpoint_interval: int = 3
    keep_checkpoints: int = 3
    resume: str | None = None
    """A checkpoint's folder, or ``latest``; None starts afresh."""
    atropos_url: str = "http://localhost:8000"
    atropos_token_env: str | None = None
    patience_s: float = 600.0
    """How long the trajectory server may stay away."""
    engine_url: str | None = None
    """An external engine to train with; None: the embedded one, as ``serving`` says."""
    external_name: str | None = None
    """The model's name there; None: whatever it serves first."""
    weight_sync: WeightSync = "wait"
    publish_interval: int = 1
    """Steps between two publications of the weights."""
    max_logprob_gap: float | None = None
    """None: 1e-3 in float32, 0.2 in bfloat16."""
    use_wandb: bool = False
    wandb_project: str | None = None
    wandb_group: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("training_steps", "batch_size", "gradient_accumulation_steps", "epochs_per_batch"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("checkpoint_interval", "keep_checkpoints", "publish_interval"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("warmup_steps", "seq_len", "patience_s", "kl_coef", "distill_coef"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        for name in ("lr", "temperature", "clip_eps_high", "max_logprob_gap"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, "above 0", value)
        for name in ("lr", "temperature", "kl_coef", "distill_coef"):
            _require(math.isfinite(getattr(self, name)), name, "a finite number", getattr(self, name))
        _require(0 < self.clip_eps < 1, "clip_eps", "between 0 and 1", self.clip_eps)
        _require(self.dtype in ("float32", "bfloat16"), "dtype", "float32 or bfloat16 to train", self.dtype)
        _require_url(self.atropos_url, "--atropos-url", " (--atropos-token-env names the variable that holds a token)")
        if self.engine_url is not None:
            _require_url(self.engine_url, "--engine-url")

    @property
    def sequences_per_step(self) -> int:
        """What is registered as the batch size: sequences for one optimizer step."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def gap_limit(self) -> float:
        if self.max_logprob_gap is not None:
            return self.max_logprob_gap
        return 1e-3 if self.dtype == "float32" else 0.2


def _require(holds: bool, field: str, what: str, value: object) -> None:
    if not holds:
        raise UsageError(f"--{field.replace('_', '-')} must be {what}, got {value}.")


def _require_url(url: str, flag: str, instead: str = "") -> None:
    """``instead``: how to give a secret that the URL must not hold."""
    if "@" in url.split("://", 1)[-1].split("/")[0]:
        raise UsageError(f"{flag} holds a user name or a password, which would reach logs: leave it out{instead}.")
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise UsageError(f"{flag}: {url!r} is not an address such as http://localhost:8000.")
