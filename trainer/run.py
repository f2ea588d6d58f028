"""One training run, put together from its parts."""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path

import torch

from trainer.checkpoints import Checkpoint, CheckpointFolder, read_checkpoint, restore_trainer_state
from trainer.config import TrainerConfig
from trainer.engine.hosting import host_engine
from trainer.errors import CheckpointError, ServiceError, UsageError
from trainer.http import JsonClient
from trainer.learner import Learner, LearnerSettings
from trainer.loading import loading
from trainer.loop import TrainingRun
from trainer.loss import ClipRange
from trainer.policy import Policy, load_policy, resolve_model
from trainer.trajectories import TrajectorySource
from trainer.weights import EmbeddedEngine, ExternalEngine, WeightSink

logger = logging.getLogger(__name__)


def train(config: TrainerConfig) -> None:
    """Train as ``config`` says, from the main thread. Raises: UsageError, TrainerError, Interrupted."""
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.seed is not None:
        torch.manual_seed(config.seed)
    folder = CheckpointFolder(config.save_path, config.keep_checkpoints)
    source = _source(config)
    checkpoint = _checkpoint_to_resume(config, folder)
    # weights that are trained are float32 whatever is computed in: small steps would be lost in half the digits
    with loading():
        start = str(checkpoint.path) if checkpoint else config.model
        policy = load_policy(start, device=config.device, dtype="float32")
        learner = Learner(policy.model, _learner_settings(config))
    if checkpoint is not None:
        restore_trainer_state(checkpoint, policy.model, learner.optimizer)
        logger.info("Going on from %s.", checkpoint.path)
    sink = _sink(config, policy)
    try:
        if config.resume is None:
            folder.set_aside_earlier_run()
        run = TrainingRun(config, policy, learner, sink, source, folder)
        run.train(checkpoint.step if checkpoint else 0)
    finally:
        sink.close()


def _checkpoint_to_resume(config: TrainerConfig, folder: CheckpointFolder) -> Checkpoint | None:
    if config.resume is None:
        return None
    if config.resume != "latest":
        try:
            return read_checkpoint(Path(config.resume))
        except CheckpointError as error:
            raise UsageError(f"--resume: {error}") from error
    if found := folder.all():
        return read_checkpoint(found[-1].path)
    logger.info("--resume: %s holds no checkpoint yet; starting from %s.", folder.folder, config.model)
    return None


def _learner_settings(config: TrainerConfig) -> LearnerSettings:
    return LearnerSettings(
        lr=config.lr,
        warmup_steps=config.warmup_steps,
        optimizer=config.optimizer,
        clip=ClipRange(config.clip_eps, config.clip_eps if config.clip_eps_high is None else config.clip_eps_high),
        kl_coef=config.kl_coef,
        distill_coef=config.distill_coef,
        micro_batch_size=config.batch_size,
        epochs=config.epochs_per_batch,
        at_temperature=config.serving.logprobs_mode == "processed_logprobs",
        autocast=None if config.dtype == "float32" else getattr(torch, config.dtype),
    )


def _sink(config: TrainerConfig, policy: Policy) -> WeightSink:
    """The engine that environments sample from: one of this process, or an external one."""
    if config.engine_url is None:
        # sampling has a copy of its own, so that it always serves one published version, whole
        served = copy.deepcopy(policy.model).to(getattr(torch, config.dtype)).requires_grad_(False)
        # clients read the tokenizer from the folder of --model: a checkpoint's folder will be gone one day
        host = host_engine(served, policy.tokenizer, resolve_model(config.model), config.serving)
        host.start()
        return EmbeddedEngine(host, config.weight_sync)
    if policy.has_tied_embeddings:
        logger.warning(
            "%s ties its embeddings, of which some vLLM builds keep a stale copy after a reload: watch "
            "train/logprob_gap, or untie them.",
            config.model,
        )
    client = JsonClient(config.engine_url.removesuffix("/").removesuffix("/v1"))
    try:
        client.get("/health")
    except ServiceError as error:
        raise UsageError(f"--engine-url {config.engine_url}: no engine answers there ({error}); start it.") from error
    return ExternalEngine(client, config.save_path / "weights", config.weight_sync, config.external_name)


def _source(config: TrainerConfig) -> TrajectorySource:
    token = os.environ.get(config.atropos_token_env) if config.atropos_token_env else None
    if config.atropos_token_env and not token:
        raise UsageError(f"--atropos-token-env: the variable {config.atropos_token_env} is not set.")
    return TrajectorySource(JsonClient(config.atropos_url, token=token), patience_s=config.patience_s)
