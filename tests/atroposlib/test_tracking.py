"""Whatever an environment puts into its metrics is kept, and never ends a run."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.tracking import JsonlTracker, NullTracker, Table, WandbTracker, json_value, make_tracker


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text(encoding="utf-8").splitlines()]


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    label: str


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def item(self) -> float:
        raise TypeError("not a scalar")


def test_a_line_holds_step_time_and_metrics(tmp_path):
    tracker = make_tracker("jsonl", tmp_path / "run", name="first", config={"lr": 0.1})
    tracker.log({"train/loss": 0.5}, step=3)
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    tracker.finish()
    assert line["step"] == 3
    assert line["train/loss"] == 0.5
    assert line["time"] > 1_600_000_000
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == {"name": "first", "config": {"lr": 0.1}}


def test_a_second_run_in_the_same_folder_appends(tmp_path):
    for step in (1, 2):
        tracker = JsonlTracker(tmp_path)
        tracker.log({}, step=step)
        tracker.finish()
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(2.5), 2.5),
        (np.float64("nan"), "nan"),
        (float("-inf"), "-inf"),
        (10**400, 10**400),
        (None, None),
        ("text", "text"),
        ("\udc80half", "\\udc80half"),
        ({1: "a", "1": "b"}, {"1": "a", "1'": "b"}),
        ({"b", "a"}, ["a", "b"]),
        (Colour.RED, "red"),
        (Point(1.0, "p"), {"x": 1.0, "label": "p"}),
        (Path("/tmp/x"), "/tmp/x"),
        (b"\xff\x00", "/wA="),
        (int, "<class 'int'>"),
        (1 + 2j, "(1+2j)"),
        (Broken(), "<Broken, its repr raised RuntimeError>"),
        (Table(["text", "score"], [["a", np.float32(1)]]), {"columns": ["text", "score"], "rows": [["a", 1.0]]}),
    ],
)
def test_a_value_of_an_odd_type_is_written_in_its_nearest_form(tmp_path, value, written):
    tracker = JsonlTracker(tmp_path)
    tracker.log({"odd": value}, step=0)
    tracker.finish()
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["odd"] == written


def test_a_tensor_is_written_as_a_list():
    torch = pytest.importorskip("torch")
    assert json_value(torch.tensor([1, 2])) == [1, 2]
    assert json_value(torch.tensor(0.5)) == 0.5


def test_a_value_that_holds_itself_is_described_not_followed_for_ever():
    loop: list = []
    loop.append(loop)
    assert "[[...]]" in json.dumps(json_value(loop))


def test_a_very_long_description_says_how_much_was_cut():
    class Long:
        def __repr__(self) -> str:
            return "x" * 50_000

    assert json_value(Long()).endswith("(cut from 50000 characters)")


def test_a_metric_named_like_the_lines_own_keys_is_kept_beside_them(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.log({"step": "mine", "time": 1, 5: "number"}, step=9)
    tracker.finish()
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert (line["step"], line["metrics/step"], line["metrics/time"], line["5"]) == (9, "mine", 1, "number")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    )
)
def test_json_value_is_always_strict_json_and_stable(value):
    text = json.dumps(json_value(value), allow_nan=False)
    assert json_value(json.loads(text)) == json.loads(text)


class RecordingRun:
    """What of a wandb run the tracker uses."""

    def __init__(self, folder: Path | None = None) -> None:
        self.offline = folder is not None
        self.dir = str((folder or Path()) / "files")
        self.logged: list[tuple[int, dict]] = []
        self.finished = False

    def log(self, values: dict, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_numbers_as_numbers_and_tables_as_its_own():
    run = RecordingRun()
    tracker = WandbTracker(run, table=lambda columns, data: ("wandb table", columns, data))
    tracker.log({"loss": float("nan"), "odd": Point(1.0, "p"), "rollouts": Table(["text"], [[None]])}, step=1)
    tracker.finish()
    ((step, values),) = run.logged
    assert step == 1
    assert math.isnan(values["loss"])
    assert values["odd"] == {"x": 1.0, "label": "p"}
    assert values["rollouts"] == ("wandb table", ["text"], [["None"]])
    assert run.finished


def test_wandb_steps_never_go_back_so_nothing_is_dropped():
    run = RecordingRun()
    tracker = WandbTracker(run, table=None)
    tracker.log({"a": 1}, step=5)
    tracker.log({"a": 2}, step=3)
    assert run.logged == [(5, {"a": 1}), (5, {"a": 2, "step": 3})]


def test_a_run_that_wandb_kept_offline_ends_with_the_command_that_sends_it(caplog):
    caplog.set_level("INFO")
    for folder in (Path("runs/of a day"), None):
        tracker = WandbTracker(RecordingRun(folder), table=None)
        tracker.finish()
        tracker.finish()
    (record,) = caplog.records
    assert record.message.endswith("To send them to wandb: wandb sync 'runs/of a day'")


def test_without_wandb_the_metrics_go_to_jsonl_and_one_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    tracker = make_tracker("wandb", tmp_path)
    tracker.log({"a": 1}, step=0)
    tracker.finish()
    assert read_lines(tmp_path / "metrics.jsonl")[0]["a"] == 1
    (record,) = caplog.records
    assert "wandb is not installed" in record.message


@pytest.mark.slow
def test_without_a_key_wandb_works_offline_and_one_line_says_so(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "absent"))
    tracker = make_tracker("wandb", tmp_path, project="p", name="n", config={"odd": Broken()})
    tracker.log({"a": np.float32(1), "t": Table(["text"], [["x"]])}, step=0)
    assert [record.message for record in caplog.records if "works offline" in record.message]
    caplog.set_level("INFO")
    tracker.finish()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert caplog.records[-1].message.endswith(f"wandb sync {folder}")


@pytest.mark.slow
def test_no_file_of_a_run_with_wandb_holds_the_key_that_was_typed(tmp_path):
    pytest.importorskip("wandb")
    root = Path(__file__).parents[2]
    words = ("process", "--total_steps", "1", "--use_wandb", "--metrics_dir", "m", "--testing", "--openai.api_key")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    subprocess.run(
        [sys.executable, "-m", "tests.atroposlib.envs.counting_env", *words, "sk-typed"],
        cwd=tmp_path,
        env={**environ, "NETRC": str(tmp_path / "absent"), "PYTHONPATH": str(root)},
        check=True,
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    (run,) = (path for path in files if path.suffix == ".wandb")
    assert b"max_num_workers" in run.read_bytes()  # the settings are there
    assert [path for path in files if b"sk-typed" in path.read_bytes()] == []


def test_none_keeps_nothing(tmp_path):
    tracker = make_tracker("none", tmp_path)
    tracker.log({"a": 1}, step=0)
    tracker.finish()
    assert isinstance(tracker, NullTracker)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_is_an_error_that_lists_the_kinds(tmp_path):
    with pytest.raises(ValueError, match="wandb, jsonl, none"):
        make_tracker("tensorboard", tmp_path)
