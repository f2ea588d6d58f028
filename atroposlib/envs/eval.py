"""Evaluations without an environment: a class with data and one coroutine per item.

class MyEval(EvalBase):
    def setup_data(self): return [...]
    async def run_item(self, server, data_item): return {"accuracy": 1.0}, [sample]

asyncio.run(eval_runner(MyEval(temperature=0.6, eval_dir="results")))
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.envs.eval_results import Evaluation
from atroposlib.envs.server_handling.completions import together
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)


def pass_at_k(m: int, c: int, k: int) -> float:
    """The unbiased chance that one of ``k`` answers is right, from ``c`` right ones among ``m`` samples."""
    if m - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(m - c + 1, m + 1))


def evaluate_log(
    metrics: Mapping[str, Any],
    eval_dir: str | Path | None = None,
    task_name: str | None = None,
    model_name: str | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
    generation_parameters: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] | None = None,
    verbose: bool = True,
) -> None:
    """Write ``metrics.json`` and ``samples.jsonl`` into ``eval_dir``, then show a table. Times are unix seconds.

    Without a folder nothing is written, and that is logged.
    """
    now = time.time()
    evaluation = Evaluation(
        task=task_name or "eval",
        metrics=metrics,
        samples=samples or (),
        model_name=model_name,
        started=now if start_time is None else start_time,
        ended=now if end_time is None else end_time,
        generation_parameters=generation_parameters or {},
    )
    if eval_dir is None:
        logger.warning("eval_dir is not set: the results are not kept")
    else:
        evaluation.write(Path(eval_dir))
    if verbose:
        sys.stdout.write(evaluation.table() + "\n")


class EvalBase(ABC):
    """An evaluation. Keywords become attributes.

    Known ones: ``temperature`` (0.0), ``top_p`` (1.0), ``max_tokens`` (-1: the engine's limit), ``eval_dir``,
    ``verbose``. ``pass_at_n`` and ``pass_at_n_samples`` say how many answers are asked for at once: the larger one.
    """

    def __init__(self, pass_at_n: int = 1, pass_at_n_samples: int = 1, **kwargs: Any) -> None:
        self.pass_at_n = pass_at_n
        self.pass_at_n_samples = pass_at_n_samples
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.data = self.setup_data()

    @abstractmethod
    def setup_data(self) -> list[Any]:
        """Return the items."""

    @abstractmethod
    async def run_item(self, server: ServerManager, data_item: Any) -> tuple[dict[str, float], list[Any]]:
        """Return the metrics of one item, the same names for each, and what to keep of it as samples."""

    def get_generation_params(self) -> dict[str, Any]:
        """What goes with each request."""
        return {
            "temperature": getattr(self, "temperature", 0.0),
            "n": max(self.pass_at_n_samples, self.pass_at_n),
            "top_p": getattr(self, "top_p", 1.0),
            "max_tokens": getattr(self, "max_tokens", -1),
        }

    async def chat_completion(self, server: ServerManager, messages: Sequence[Mapping[str, Any]]) -> ChatCompletion:
        """Ask with the parameters of this evaluation."""
        parameters = self.get_generation_params()
        if parameters["max_tokens"] < 0:
            del parameters["max_tokens"]
        return await server.chat_completion(messages=messages, split="eval", **parameters)

    @property
    def task_name(self) -> str:
        """``<Class>@<n>``, with ``:<samples>`` where these are another number."""
        samples = "" if self.pass_at_n == self.pass_at_n_samples else f":{self.pass_at_n_samples}"
        return f"{type(self).__name__}@{self.pass_at_n}{samples}"

    async def __call__(self, server_manager: ServerManager) -> dict[str, float]:
        """Run all items at once, write the results, and return the mean of each metric.

        What an item raises ends the evaluation. Raises: ConfigError where there are no items.
        """
        if not self.data:
            raise ConfigError(f"{type(self).__name__}.setup_data() returned no items")
        started = time.time()
        results = await together(self.run_item(server_manager, item) for item in self.data)
        metrics = _means([result[0] for result in results])
        evaluate_log(
            metrics,
            eval_dir=getattr(self, "eval_dir", None),
            task_name=self.task_name,
            model_name=server_manager.servers[0].config.model_name,
            start_time=started,
            end_time=time.time(),
            generation_parameters=self.get_generation_params(),
            samples=_flat_samples([result[1] for result in results]),
            verbose=getattr(self, "verbose", False),
        )
        return metrics


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(metrics[name] for metrics in each) / len(each) for name in each[0]}


def _flat_samples(of_items: Sequence[Any]) -> list[dict[str, Any]]:
    """One line per sample; what is no mapping is kept under ``sample``."""
    flat = [sample for samples in of_items for sample in (samples if isinstance(samples, list) else [samples])]
    return [dict(sample) if isinstance(sample, Mapping) else {"sample": sample} for sample in flat]


async def eval_runner(eval_env: EvalBase, argv: Sequence[str] | None = None) -> dict[str, float]:
    """Run an evaluation against the engine that the command line names; returns its metrics."""
    parser = argparse.ArgumentParser(description=type(eval_env).__doc__)
    parser.add_argument("--server-url", default="http://localhost:8000", help="URL of the engine")
    parser.add_argument("--model-name", help="model to ask for (default: the one that the engine lists)")
    parser.add_argument("--api-key", default="dummy")
    arguments = parser.parse_args(argv)
    config = APIServerConfig(
        api_key=arguments.api_key,
        base_url=arguments.server_url,
        model_name=arguments.model_name or "default",
        health_check=False,
    )
    async with ServerManager([config]) as server_manager:
        return await eval_env(server_manager)
