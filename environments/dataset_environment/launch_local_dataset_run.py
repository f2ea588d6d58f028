"""A whole training run in one command: ``python -m environments.dataset_environment.launch_local_dataset_run``.

Starts the trajectory server, the trainer and the data set environment, shows each step, and ends all of them. Without
``--base_url`` the policy that ships is trained, served by the embedded engine; with it, the engine there is asked and
updated. Flags that are not listed here are those of ``dataset_env serve``; ``--trainer.FLAG`` are those of the trainer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from atroposlib.envs.addresses import check_urls
from atroposlib.envs.argv import Flag, split_flags
from atroposlib.envs.cli import defaults_of
from atroposlib.envs.settings import settings_from
from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_env import DatasetEnv
from environments.local_run import programs
from environments.local_run.curve import draw_png, draw_text, newest_value, read_rewards
from environments.local_run.ports import free_ports
from environments.local_run.processes import ChildFailed, ProcessGroup
from environments.local_run.training import Training

ENVIRONMENT = "environments.dataset_environment.dataset_env"
DEFAULT_CONFIG = "dataset_local"
TRAINER_PREFIX = "trainer."
DATA_FLAGS = ("dataset_name", "dataset_path")
DEFAULTS_OF_THE_TRAINER = {"training-steps": "30", "batch-size": "32", "gradient-accumulation-steps": "1", "lr": "1e-3"}
"""What suits the policy that ships; any of it can be given otherwise."""


@dataclass(frozen=True)
class Launch:
    """What the command line chose."""

    folder: Path
    base_url: str | None
    environment_words: tuple[str, ...]
    trainer_flags: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        words = " ".join(self.trainer_flags["training-steps"])
        if not words.isdecimal() or int(words) == 0:
            raise ConfigError(f"--training_steps: {words!r} is no number of steps")

    @property
    def steps(self) -> int:
        """Training steps of the run."""
        return int(self.trainer_flags["training-steps"][0])

    @property
    def trainer_words(self) -> list[str]:
        """The flags of the trainer as words."""
        return [word for name, values in self.trainer_flags.items() for word in (f"--{name}", *values)]


def read_command_line(argv: Sequence[str] | None) -> Launch:
    """Part the words into those of the launcher, the trainer and the environment. Raises: ConfigError, SystemExit."""
    parser = argparse.ArgumentParser(
        prog="python -m environments.dataset_environment.launch_local_dataset_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", help=f"configuration by name or path ({DEFAULT_CONFIG}, unless a data set is named)")
    add("--base_url", "--openai.base_url", dest="base_url", help="an engine that is there already")
    add("--model", "--model_name", "--openai.model_name", dest="model", help="what to train (the policy that ships)")
    add("--training_steps", "--training-steps", dest="steps", help=f"({DEFAULTS_OF_THE_TRAINER['training-steps']})")
    add("--folder", type=Path, help="where to write (runs/dataset-<time>)")
    options, words = parser.parse_known_args(argv)
    flags = split_flags(words)
    trainer: dict[str, tuple[str, ...]] = {name: (value,) for name, value in DEFAULTS_OF_THE_TRAINER.items()}
    trainer |= {_trainer_name(flag): flag.values for flag in flags if flag.name.startswith(TRAINER_PREFIX)}
    trainer |= {"training-steps": (options.steps,)} if options.steps else {}
    trainer |= {"model": (options.model,)} if options.model else {}
    own = [flag for flag in flags if not flag.name.startswith(TRAINER_PREFIX)]
    folder = options.folder or Path("runs") / time.strftime("dataset-%Y%m%d-%H%M%S")
    words_of_environment = (*_config_words(options.config, own), *(word for flag in own for word in _words_of(flag)))
    return Launch(folder.resolve(), options.base_url, words_of_environment, trainer)


def _trainer_name(flag: Flag) -> str:
    return flag.name.removeprefix(TRAINER_PREFIX).replace("_", "-")


def _words_of(flag: Flag) -> list[str]:
    return [f"{flag.spelled}={flag.values[0]}"] if flag.joined else [flag.spelled, *flag.values]


def _config_words(config: str | None, flags: Sequence[Flag]) -> list[str]:
    """The configuration to read: the one that was named, or the default one where no data set was."""
    names_data = any(flag.name.removeprefix("env.") in DATA_FLAGS for flag in flags)
    chosen = config or (None if names_data else DEFAULT_CONFIG)
    return ["--config", chosen] if chosen else []


async def launch(choice: Launch, console: Console) -> None:
    """Run to the end. Raises: ChildFailed where a program of it failed."""
    training = training_of(choice, *free_ports(2))
    async with ProcessGroup(choice.folder / "logs") as group:
        await training.run(group, console)


def training_of(choice: Launch, engine_port: int, server_port: int) -> Training:
    """The programs of the run: with an engine of its own, or with the one at ``base_url``."""
    trainer_folder, metrics = choice.folder / "trainer", choice.folder / "environment"
    if choice.base_url is None:
        engine_url, flags = f"http://127.0.0.1:{engine_port}/v1", choice.trainer_words
        trainer = programs.trainer(server_port, trainer_folder, *flags, engine_port=engine_port)
    else:
        engine_url, flags = choice.base_url, [*choice.trainer_words, "--engine-url", choice.base_url]
        trainer = programs.trainer(server_port, trainer_folder, *flags)
    words = (*choice.environment_words, "--env.metrics_dir", str(metrics))
    return Training(
        server=programs.trajectory_server(server_port, choice.folder / "queue.sqlite"),
        trainer=trainer,
        environment=programs.environment(ENVIRONMENT, "serve", engine_url, server_port, *words),
        metrics=trainer_folder / "metrics.jsonl",
        steps=choice.steps,
        more=lambda: {"groups left out": f"{newest_value(metrics / 'metrics.jsonl', 'groups/left_out_total'):.0f}"},
    )


def report(choice: Launch, console: Console) -> None:
    """Show the curve, and where things are."""
    rewards = read_rewards(choice.folder / "environment" / "metrics.jsonl")
    if rewards:
        draw_png(rewards, {}, choice.folder / "curve.png")
        console.print(draw_text(rewards), highlight=False, markup=False)
    checkpoint = programs.newest_checkpoint(choice.folder / "trainer")
    console.print(f"The trained policy: {checkpoint}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Everything this run wrote: {choice.folder}", highlight=False, markup=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 2 for a wrong setting, 1 where a program failed, 130 when interrupted."""
    console, errors = Console(), Console(stderr=True)
    try:
        choice = read_command_line(argv)
        words = [*choice.environment_words, *(["--openai.base_url", choice.base_url] if choice.base_url else [])]
        check_urls(settings_from(split_flags(words), defaults_of(DatasetEnv, "serve")))
        choice.folder.mkdir(parents=True, exist_ok=True)
        console.print(f"Logs: {choice.folder / 'logs'}", highlight=False, markup=False, soft_wrap=True)
        with programs.sigterm_as_interrupt():
            asyncio.run(launch(choice, console))
    except (ConfigError, OSError) as error:
        errors.print(Text(str(error)), soft_wrap=True)
        return 2
    except ChildFailed as error:
        errors.print(Text(str(error)), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("Stopped; every process of this run has ended.")
        return 130
    report(choice, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
