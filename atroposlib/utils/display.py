"""Show the results of an evaluation."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from atroposlib.envs.eval_results import Evaluation


def display_metrics_table(task_name: str, metrics: Mapping[str, object], start_time: float, end_time: float) -> None:
    """Write the metrics to standard output as a Markdown table."""
    table = Evaluation(task_name, metrics).table()
    sys.stdout.write(f"\n{table}\nEvaluation completed in {end_time - start_time:.2f} seconds\n")
