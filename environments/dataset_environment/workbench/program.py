"""``python -m atroposlib.cli.dataset_env_debugger``: try the rewards of an environment on the answers of a model."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from atroposlib.errors import AtroposError, ConfigError, RolloutInvalid
from environments.dataset_environment.config_files import Kind, list_configs
from environments.dataset_environment.dataset_env import Trial
from environments.dataset_environment.workbench.agents import read_agent
from environments.dataset_environment.workbench.bench import Bench, Choice, open_bench
from environments.dataset_environment.workbench.dialogue import Dialogue
from environments.dataset_environment.workbench.display import Display
from environments.local_run.processes import ChildFailed
from environments.local_run.programs import sigterm_as_interrupt

DEFAULT_ENV, DEFAULT_AGENT = "dataset_local", "embedded"
DEFAULT_SAMPLES = 3
WAITING_LOG = "atroposlib.envs.server_handling.http_engine"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench as the command line says; returns the exit code: 2 for a wrong setting, 1 for what failed."""
    options = make_parser().parse_args(argv)
    if options.list_configs:
        show_configs(Console())
        return 0
    return guarded(lambda: _run(options), options.verbose, options.debug)


def make_parser() -> argparse.ArgumentParser:
    """The flags of the debugger."""
    parser = argparse.ArgumentParser(
        prog="python -m atroposlib.cli.dataset_env_debugger",
        description="Answers questions of an environment with a model, and shows every reward with its parts and why.",
    )
    add = parser.add_argument
    add("--env", default=DEFAULT_ENV, help="environment: a name of --list-configs, or a YAML file (%(default)s)")
    add("--agent", default=DEFAULT_AGENT, help="model: a name of --list-configs, or a YAML file (%(default)s)")
    add("--list-configs", action="store_true", help="list environments and agents")
    add("--interactive", action="store_true", help="one question at a time, prompts and answers changed by hand")
    add("--samples", type=positive, default=DEFAULT_SAMPLES, help="questions where not interactive (%(default)s)")
    add("--temperature", type=float)
    add("--top-p", type=float)
    add("--max-tokens", type=positive)
    add("--cases", type=Path, default=Path("reward_cases"), help="where saved cases go (%(default)s)")
    add("--debug", action="store_true", help="show whole texts, whole conversations and the item")
    add("--verbose", action="store_true", help="show the log")
    return parser


def positive(text: str) -> int:
    """A count of one or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def guarded(run: Callable[[], int], verbose: bool = False, debug: bool = False) -> int:
    """The boundary of the programs of the bench: messages and exit codes for what they raise."""
    errors = Console(stderr=True)
    level = logging.DEBUG if debug and verbose else logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)])
    # that an engine is waited for is to be seen in any case
    logging.getLogger(WAITING_LOG).setLevel(min(level, logging.INFO))
    try:
        with sigterm_as_interrupt():
            return run()
    except ConfigError as error:
        errors.print(Text(str(error)), soft_wrap=True)
        return 2
    except (AtroposError, ChildFailed) as error:
        errors.print(Text(str(error)), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130


def show_configs(console: Console) -> None:
    """List what ``--env`` and ``--agent`` may name."""
    titles: dict[Kind, str] = {"envs": "environments (--env)", "agents": "agents (--agent)"}
    for kind, title in titles.items():
        table = Table(title=title, title_justify="left")
        table.add_column("name", style="bold green")
        table.add_column("what", overflow="fold")
        for name, path in list_configs(kind).items():
            table.add_row(name, _first_comment(path) or str(path))
        console.print(table)


def _first_comment(path: Path) -> str:
    """What a file says about itself in its first lines."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def _run(options: argparse.Namespace) -> int:
    given = {"temperature": options.temperature, "top_p": options.top_p, "max_tokens": options.max_tokens}
    sampling = {name: value for name, value in given.items() if value is not None}
    choice = Choice(options.env, read_agent(options.agent), sampling)
    display = Display(Console(), options.debug)
    if not options.interactive:
        return asyncio.run(try_questions(choice, options.samples, display))
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            bench = runner.run(_opened(stack, choice, display))
            name = Path(options.env).stem
            Dialogue(bench, display, runner.run, options.cases, name).hold()
        finally:
            runner.run(stack.aclose())
    return 0


async def _opened(stack: AsyncExitStack, choice: Choice, display: Display) -> Bench:
    with display.console.status("engine and questions are made ready …"):
        return await stack.enter_async_context(open_bench(choice))


async def try_questions(choice: Choice, count: int, display: Display) -> int:
    """Answer and judge ``count`` questions and sum up; 1 where not one answer was judged."""
    async with AsyncExitStack() as stack:
        bench = await _opened(stack, choice, display)
        trials: list[Trial] = []
        for number in range(1, count + 1):
            question = await bench.next_question()
            display.question(question, number)
            try:
                trials.append(await bench.attempt(question))
            except RolloutInvalid as error:
                display.error(f"no answer: {error}")
                continue
            display.trial(trials[-1], bench.model_name)
        display.summary(trials, failed=count - len(trials))
    return 0 if any(trial.score.reward is not None for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
