"""Checkpoints: folders that transformers and vLLM load, with what the trainer needs to go on.

    step_12/                    config, safetensors, tokenizer: a model like any other
    step_12/trainer/state.json  step, optimizer settings, names of its parameters
    step_12/trainer/state.safetensors   optimizer tensors and random state

A checkpoint appears under its name only when it is complete, and older ones go only after that. Nothing in it is a
pickle, so loading one runs no code.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer.errors import CheckpointError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step_(\d+)")
_EXTRA = "trainer"
_RUN_ID = "run_id"
_IN_RUST = re.compile(r"\(os error \d+\)")
"""What the system refuses to safetensors and tokenizers, which are in Rust, is no ``OSError``."""
_OF_ONE_RUN = ("metrics.jsonl", "run.json", _RUN_ID)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    """How many steps the policy in it has been trained for."""


@contextmanager
def saving(path: Path, newest: Checkpoint | None = None) -> Iterator[None]:
    """Write ``path`` below ``--save-path``; half of it does not stay and take up room.

    Raises: CheckpointError where the system refuses, which names ``newest``, the checkpoint that is whole.
    """
    try:
        yield
    except Exception as error:
        if not (isinstance(error, OSError) or _IN_RUST.search(str(error))):
            raise
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        why = error.strerror or error if isinstance(error, OSError) else error
        then = f"; --resume goes on from {newest.path.name}" if newest else ""
        raise CheckpointError(
            f"--save-path: cannot write to {path.parent}: {why}. Free the disk, or choose another folder{then}."
        ) from error


class CheckpointFolder:
    """The checkpoints of one run; at most ``keep`` of them stay.

    Raises: CheckpointError, where the folder cannot be written.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self._keep = keep
        probe = folder / f".write-test.{os.getpid()}"
        with saving(probe):
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        self._finish_replacements()

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, the oldest first."""
        found = [(match, path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return sorted((Checkpoint(path, int(match[1])) for match, path in found), key=lambda one: one.step)

    def save(self, step: int, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> Checkpoint:
        """Write ``step_<step>``; it replaces one of the same step, and the oldest go. Raises: CheckpointError."""
        target = self.folder / f"step_{step}"
        partial = self.folder / f".{target.name}.partial"
        whole = self.all()
        with saving(partial, newest=whole[-1] if whole else None):
            self._remove_leftovers()
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            _save_trainer_state(partial / _EXTRA, step, model, optimizer)
            _sync(partial)
            _move_into_place(partial, target)
            for old in self.all()[: -self._keep]:
                shutil.rmtree(old.path)
        return Checkpoint(target, step)

    def run_id(self) -> str:
        """A name for the run in this folder: new where there is none, the same for a trainer that comes back."""
        path = self.folder / _RUN_ID
        if not path.exists():
            with saving(path):
                path.write_text(secrets.token_hex(4))
        return path.read_text()

    def set_aside_earlier_run(self) -> None:
        """Move what an earlier run left to ``runs/<time>/``, so that this one begins with an empty folder."""
        leftovers = [one.path for one in self.all()]
        leftovers += [path for name in _OF_ONE_RUN if (path := self.folder / name).exists()]
        if leftovers:
            aside = self.folder / "runs" / time.strftime("%Y%m%d-%H%M%S")
            with saving(aside):
                aside.mkdir(parents=True, exist_ok=True)
            for path in leftovers:
                path.rename(aside / path.name)
            logger.info("What an earlier run left in %s is now in %s.", self.folder, aside)

    def _finish_replacements(self) -> None:
        """A trainer that was killed between the two renames of a replacement left the old checkpoint hidden."""
        for replaced in self.folder.glob(".step_*.replaced"):
            target = self.folder / replaced.name.removeprefix(".").removesuffix(".replaced")
            if not target.exists():
                replaced.rename(target)

    def _remove_leftovers(self) -> None:
        """Folders that a killed trainer left half written or half replaced."""
        for path in [*self.folder.glob(".step_*.partial"), *self.folder.glob(".step_*.replaced")]:
            shutil.rmtree(path)


def restore_trainer_state(checkpoint: Checkpoint, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Bring optimizer and random state back to where ``checkpoint`` was written.

    Raises: CheckpointError, where they were not saved or are another model's.
    """
    folder = checkpoint.path / _EXTRA
    try:
        state = json.loads((folder / "state.json").read_text())
        tensors = load_file(folder / "state.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint.path} holds no readable trainer state: {error}") from error
    names = [name for name, _ in model.named_parameters()]
    if state["parameters"] != names or state["optimizer"] != type(optimizer).__name__:
        raise CheckpointError(f"{checkpoint.path} was written with another model or optimizer ({state['optimizer']}).")
    moments: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in state["values"].items()}
    for key, tensor in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            index, _, name = rest.partition("/")
            moments.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": moments, "param_groups": state["param_groups"]})
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in ``path``. Raises: CheckpointError, where it is none."""
    try:
        step = int(json.loads((path / _EXTRA / "state.json").read_text())["step"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of this trainer: {error}") from error
    return Checkpoint(path, step)


def _save_trainer_state(folder: Path, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    folder.mkdir()
    state = optimizer.state_dict()
    tensors = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    values: dict[str, dict[str, Any]] = {}
    for index, own in state["state"].items():
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer/{index}/{name}"] = value.contiguous()
            else:
                values.setdefault(str(index), {})[name] = value
    save_file(tensors, folder / "state.safetensors")
    about = {
        "step": step,
        "optimizer": type(optimizer).__name__,
        "parameters": [name for name, _ in model.named_parameters()],
        "param_groups": state["param_groups"],
        "values": values,
    }
    (folder / "state.json").write_text(json.dumps(about, indent=1))


def _move_into_place(partial: Path, target: Path) -> None:
    replaced = target.with_name(f".{target.name}.replaced")
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    _sync_one(target.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def _sync(folder: Path) -> None:
    """Have everything under ``folder`` on the disk before its name is changed."""
    for path in [*folder.rglob("*"), folder]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
