"""The training loop, top to bottom: register, fetch a batch, learn from it, publish the weights, log, save.

What it promises beyond learning:

- the trajectory server may restart: calls are repeated, the run is registered again where it was forgotten;
- Ctrl-C (or SIGTERM) ends after the step under way and saves; ``--resume`` goes on from there, or from the last
  checkpoint after a kill;
- after each publication the engine is asked for a few tokens, and its logprobs are compared with the trainer's own:
  an engine that serves something else than what is trained shows at once.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import fmean, pstdev

from atroposlib.tracking import Tracker, make_tracker
from trainer.batches import BatchLimits, Sample, TrainingBatch, make_batch
from trainer.checkpoints import CheckpointFolder
from trainer.config import TrainerConfig
from trainer.errors import BatchRefused, Interrupted
from trainer.learner import Learner, Metrics
from trainer.policy import Policy
from trainer.trajectories import Stopped, TrajectorySource, registration_of
from trainer.weights import WeightSink, logprob_gap

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 16
_USELESS_BATCHES = 3
"""So many batches in a row without anything to train on end the run."""


class TrainingRun:
    """One run over one policy and one engine; ``train`` it once, from the main thread."""

    def __init__(
        self,
        config: TrainerConfig,
        policy: Policy,
        learner: Learner,
        sink: WeightSink,
        source: TrajectorySource,
        checkpoints: CheckpointFolder,
    ) -> None:
        self._config = config
        self._policy = policy
        self._learner = learner
        self._sink = sink
        self._source = source
        self._checkpoints = checkpoints
        self._signal: int | None = None
        self._step = self._saved = 0
        self._version = 0
        self._useless_batches = 0
        self._warned: set[str] = set()
        vocabulary = policy.model.config.get_text_config().vocab_size
        self._limits = BatchLimits(config.seq_len, vocabulary, config.temperature)

    def train(self, first_step: int = 0) -> None:
        """Train to ``config.training_steps``; what was learned is saved, whatever ends it.

        Raises: Interrupted, TrainerError; ConfigError where metrics cannot be written.
        """
        config = self._config
        tracker = make_tracker(
            "wandb" if config.use_wandb else "jsonl",
            config.save_path,
            project=config.wandb_project,
            group=config.wandb_group,
            config=vars(config),
        )
        self._step = self._saved = first_step
        with self._ending_on_signals():
            try:
                self._train_on_batches(tracker)
            except Stopped:
                logger.info("Asked to end while waiting for a batch.")
            finally:
                self._save()
                tracker.finish()
            self._outlast_environments()
        if self._signal is not None and self._step < config.training_steps:
            raise Interrupted(self._signal)

    def _outlast_environments(self) -> None:
        """Keep the engine of this process up for evaluations at the end of the run."""
        if self._signal is None and self._config.engine_url is None:
            with suppress(Stopped):
                self._source.wait_for_environments()

    def _train_on_batches(self, tracker: Tracker) -> None:
        self._publish(self._step)
        self._source.register(registration_of(self._config, self._checkpoints.run_id(), self._step))
        while self._step < self._config.training_steps and self._signal is None:
            self._train_on_next_batch(self._step, tracker)
            self._step += 1
            if self._step % self._config.checkpoint_interval == 0:
                self._save()

    def _train_on_next_batch(self, step: int, tracker: Tracker) -> None:
        started = time.monotonic()
        groups = self._source.next_batch(step)
        fetched = time.monotonic()
        batch = make_batch(groups, self._limits)
        self._complain(batch)
        metrics = self._learner.update(batch, step)
        learned = time.monotonic()
        if (step + 1) % self._config.publish_interval == 0:
            self._publish(step + 1)
            metrics |= self._gap(batch)
        ended = time.monotonic()
        tracker.log(
            {
                **{f"train/{name}": value for name, value in {**_describe(batch, step), **metrics}.items()},
                "train/tokens_per_s": batch.trained_tokens / max(ended - started, 1e-9),
                "policy/version": self._version,
                "time/wait_s": fetched - started,
                "time/learn_s": learned - fetched,
                "time/publish_s": ended - learned,
            },
            step=step + 1,
        )
        logger.info(
            "step %d: reward %.3f, %d sequences, %d tokens, loss %.4f, waited %.1f s, learned in %.1f s",
            *(step + 1, fmean(batch.rollout_scores), len(batch.samples), batch.trained_tokens),
            *(metrics.get("loss", 0.0), fetched - started, learned - fetched),
        )

    def _publish(self, step: int) -> None:
        self._sink.publish(self._policy.model, str(step))
        self._version = step

    def _gap(self, batch: TrainingBatch) -> Metrics:
        """Let the engine go on from a prompt of the batch, and compare its logprobs with the trainer's."""
        if not batch.samples:
            return {}
        first = batch.samples[0]
        prompt = first.tokens[: list(first.trained).index(True)]
        # no longer than what was sampled after it before: so much fits into the engine for certain
        gap = logprob_gap(self._sink, self._learner, prompt, min(_PROBE_TOKENS, len(first.tokens) - len(prompt)))
        alarm = not gap <= self._config.gap_limit
        if alarm:
            logger.error(
                "The engine's logprobs differ from the trainer's by %.2g (limit %.2g): it does not serve the weights "
                "that are trained%s.",
                *(gap, self._config.gap_limit),
                "; tied embeddings are known to go stale in vLLM, untie them" * self._policy.has_tied_embeddings,
            )
        return {"logprob_gap": gap, "logprob_gap_alarm": float(alarm)}

    def _complain(self, batch: TrainingBatch) -> None:
        """Say each reason for leaving sequences out once; end a run that gets nothing but those.

        Raises: BatchRefused.
        """
        for reason, complaint in batch.complaints.items():
            self._warn_once(reason, f"Left out ({reason}, counted under train/left_out/{reason}): {complaint}.")
        if not self._config.kl_coef and any(sample.ref_logprobs is not None for sample in batch.samples):
            self._warn_once("ref_logprobs", "Groups carry ref_logprobs; --kl-coef 0 keeps them out of the loss.")
        self._useless_batches = 0 if batch.samples else self._useless_batches + 1
        if self._useless_batches >= _USELESS_BATCHES:
            reasons = "; ".join(batch.complaints.values())
            raise BatchRefused(f"{_USELESS_BATCHES} batches in a row held nothing to train on: {reasons}.")

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning("%s", message)

    def _save(self) -> None:
        """Save what was learned since the last time; what finds no room is not tried a second time."""
        if self._step == self._saved:
            return
        step = self._saved = self._step
        checkpoint = self._checkpoints.save(step, self._policy.model, self._policy.tokenizer, self._learner.optimizer)
        logger.info("Saved %s", checkpoint.path)

    @contextmanager
    def _ending_on_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM ends the run after its step; the next one ends it at once."""

        def end(number: int, _frame: object) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = number
            self._source.stop.set()
            logger.info("Asked to end: finishing the step under way, then saving. Once more to end at once.")

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _describe(batch: TrainingBatch, step: int) -> Metrics:
    """What came of one batch, before anything was learned from it."""
    ages = [step - version for sample in batch.samples for version in _version_numbers(sample)]
    return {
        "reward_mean": fmean(batch.rollout_scores),
        "reward_std": pstdev(batch.rollout_scores),
        "groups": batch.groups,
        "equal_groups": batch.equal_groups,
        "rollouts": len(batch.rollout_scores),
        "sequences": len(batch.samples),
        "trained_tokens": batch.trained_tokens,
        "left_out": batch.left_out.total(),
        **{f"left_out/{reason}": count for reason, count in batch.left_out.items()},
        **({"staleness_mean": fmean(ages), "staleness_max": max(ages)} if ages else {}),
    }


def _version_numbers(sample: Sample) -> list[int]:
    return [int(number) for version in sample.policy_versions for number in re.findall(r"\d+", version)]
