"""Checkpoints that anybody loads, that training goes on from, and that a kill never spoils."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.tiny_model import make_model, make_tokenizer
from trainer.checkpoints import CheckpointFolder, read_checkpoint, restore_trainer_state
from trainer.errors import CheckpointError


def _adamw(model: torch.nn.Module, lr: float = 1e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    noise = torch.randint(3, 200, (1, 8))
    model(noise, labels=noise).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _save(folder: CheckpointFolder, step: int, model: torch.nn.Module | None = None) -> None:
    model = model or make_model()
    folder.save(step, model, make_tokenizer(), _adamw(model))


def test_checkpoint_loads_as_a_model_with_its_tokenizer(tmp_path: Path) -> None:
    model = make_model(seed=3)
    _save(CheckpointFolder(tmp_path), 5, model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step_5")
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "step_5").encode("hi") == make_tokenizer().encode("hi")


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adafactor])
def test_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = make_model()
    optimizer = kind(model.parameters(), lr=1e-3)
    _step(model, optimizer)
    CheckpointFolder(tmp_path).save(1, model, make_tokenizer(), optimizer)
    _step(model, optimizer)

    checkpoint = read_checkpoint(tmp_path / "step_1")
    again = AutoModelForCausalLM.from_pretrained(checkpoint.path)
    optimizer_again = kind(again.parameters(), lr=1e-3)
    restore_trainer_state(checkpoint, again, optimizer_again)
    _step(again, optimizer_again)
    torch.testing.assert_close(again.state_dict(), model.state_dict())


def test_only_the_newest_stay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2, 10):
        _save(folder, step)
    assert [checkpoint.step for checkpoint in folder.all()] == [2, 10]


@pytest.mark.parametrize(
    "refusal",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        Exception("No space left on device (os error 28)"),  # as tokenizers says it
    ],
)
def test_older_checkpoint_stays_whole_where_the_new_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    _save(folder, 1)
    model = make_model()

    def full_disk(partial: Path) -> None:
        partial.mkdir()
        (partial / "half").touch()
        raise refusal

    monkeypatch.setattr(model, "save_pretrained", full_disk)
    with pytest.raises(CheckpointError, match=r"--save-path: .*: No space left.*; --resume goes on from step_1"):
        _save(folder, 2, model)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert [checkpoint.step for checkpoint in folder.all()] == [1]
    assert read_checkpoint(tmp_path / "step_1").step == 1


def test_same_step_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    _save(folder, 1, make_model(seed=1))
    _save(folder, 1, make_model(seed=2))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step_1")
    torch.testing.assert_close(loaded.state_dict(), make_model(seed=2).state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_what_a_killed_trainer_left_half_done_is_repaired_or_removed(tmp_path: Path) -> None:
    _save(CheckpointFolder(tmp_path), 1)
    (tmp_path / "step_1").rename(tmp_path / ".step_1.replaced")  # killed between the two renames of a replacement
    (tmp_path / ".step_2.partial").mkdir()  # killed while it wrote
    folder = CheckpointFolder(tmp_path)
    assert [checkpoint.step for checkpoint in folder.all()] == [1]
    _save(folder, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_2"]


def test_earlier_run_is_moved_aside_and_its_checkpoints_are_safe_from_the_new_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    _save(folder, 100)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    first = folder.run_id()
    folder.set_aside_earlier_run()
    assert folder.all() == []
    assert folder.run_id() != first
    (aside,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in aside.iterdir()) == ["metrics.jsonl", "run_id", "step_100"]


def test_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_checkpoint(tmp_path)
    _save(CheckpointFolder(tmp_path), 1)
    state = tmp_path / "step_1" / "trainer" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    model = make_model()
    with pytest.raises(CheckpointError, match="no readable trainer state"):
        restore_trainer_state(read_checkpoint(tmp_path / "step_1"), model, _adamw(model))


def test_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    _save(CheckpointFolder(tmp_path), 1)
    model = make_model()
    with pytest.raises(CheckpointError, match="another model or optimizer"):
        restore_trainer_state(read_checkpoint(tmp_path / "step_1"), model, torch.optim.SGD(model.parameters()))


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    _save(CheckpointFolder(tmp_path), 1)
    suffixes = {path.suffix for path in (tmp_path / "step_1").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".jinja", ".txt"}
    json.loads((tmp_path / "step_1" / "trainer" / "state.json").read_text())


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="--save-path"):
        CheckpointFolder(tmp_path / "file" / "below")
