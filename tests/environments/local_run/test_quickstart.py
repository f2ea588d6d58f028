"""What the quickstart says at its end."""

import json
import subprocess
from io import StringIO
from pathlib import Path

from rich.console import Console

from environments.local_run.evaluation import SuccessRate
from environments.local_run.processes import ProcessGroup
from environments.local_run.quickstart import Run, Settings, report


def finished_run(folder: Path, console: Console) -> Run:
    """A run of two steps whose processes have ended."""
    settings = Settings(folder, steps=2, minutes=5.0, eval_size=4, seed=0, backend="auto", model="tiny")
    run = Run(settings, ProcessGroup(folder / "logs"), console, engine_port=1, server_port=2)
    run.metrics_folder.mkdir(parents=True)
    lines = [{"step": step, "time": 0.0, "train/mean_reward": step / 10} for step in (1, 2)]
    (run.metrics_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in (1, 2, 10):
        (run.trainer_folder / f"step_{step}").mkdir(parents=True)
    run.rates["trained policy"] = SuccessRate(successes=3, items=4)
    return run


def test_the_end_names_the_commands_that_show_the_results_and_serve_the_policy(tmp_path):
    shown = StringIO()
    folder = tmp_path / "a [run] with spaces"
    report(finished_run(folder, Console(file=shown, width=40)))
    *_, results, policy = shown.getvalue().splitlines()
    command = results.removeprefix("To look at the results: ")
    printed = subprocess.run(command, shell=True, capture_output=True, check=True).stdout
    assert json.loads(printed)["held_out_success"]["trained policy"]["rate"] == 0.75
    assert policy.startswith("To serve the trained policy: ")
    assert policy.endswith(f"-m trainer.serve --model '{folder}/trainer/step_10'")
