"""The whole loop on this machine: a small policy learns to use a shell in sandboxes, in a few minutes on two cores.

Engine, trajectory server, environment and trainer run as child processes, as they would on several machines. The
policy is evaluated on held-out tasks before and after, greedily, beside a policy of random commands.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from atroposlib.flag_parser import FlagParser
from environments.local_run import programs
from environments.local_run.curve import draw_png, draw_text, newest_value, read_rewards
from environments.local_run.evaluation import SuccessRate, read_success_rate
from environments.local_run.ports import free_ports
from environments.local_run.processes import ChildFailed, ChildSpec, ProcessGroup, answers
from environments.local_run.training import Training
from sandboxes import check_backend
from sandboxes.errors import SandboxUnavailable, UnknownBackend
from trainer.errors import UsageError
from trainer.policy import check_model

ENVIRONMENT = "environments.terminal_test_env.terminal_test_env"
RANDOM_POLICY = "environments.terminal_test_env.random_policy"


# Under these the shipped policy learns in a few minutes: batches of four groups, each used twice.
LEARNING = (
    *("--lr", "3e-4", "--clip-eps", "0.2", "--clip-eps-high", "0.28"),
    *("--batch-size", "32", "--gradient-accumulation-steps", "1", "--epochs-per-batch", "2"),
)


EVALUATION_MARGIN = 1.5
"""The last evaluation may take so many times as long as the one before: its policy says more."""


class SettingWrong(Exception):
    """A run cannot begin; the message names the flag, and what to install or change."""


@dataclass(frozen=True)
class Settings:
    """What the command line chose."""

    folder: Path
    steps: int
    minutes: float
    eval_size: int
    seed: int
    backend: str
    model: str


@dataclass
class Run:
    """One quickstart: its children, its ports and what it measured."""

    settings: Settings
    group: ProcessGroup
    console: Console
    engine_port: int
    server_port: int
    started: float = field(default_factory=time.monotonic)
    rates: dict[str, SuccessRate] = field(default_factory=dict)
    evaluation_s: float = 0.0
    """What the last evaluation took."""
    steps_done: int = 0

    @property
    def trainer_folder(self) -> Path:
        return self.settings.folder / "trainer"

    @property
    def metrics_folder(self) -> Path:
        return self.settings.folder / "environment"

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    def engine(self, model: str) -> ChildSpec:
        return programs.engine(model, self.engine_port)

    def random_policy(self) -> ChildSpec:
        argv = [sys.executable, "-m", RANDOM_POLICY, "--port", str(self.engine_port), "--seed", str(self.settings.seed)]
        return ChildSpec("random_policy", argv, ready=answers(f"{self.engine_url}/health"))

    def environment(self, mode: str, *flags: str) -> ChildSpec:
        own = (
            *("--env.terminal_backend", self.settings.backend),
            *("--env.seed", str(self.settings.seed)),
            *("--env.use_wandb", "false"),
        )
        return programs.environment(ENVIRONMENT, mode, f"{self.engine_url}/v1", self.server_port, *own, *flags)

    def trainer(self) -> ChildSpec:
        flags = (
            *("--model", self.settings.model),
            *("--training-steps", str(self.settings.steps)),
            *("--checkpoint-interval", str(self.settings.steps)),
            *("--seed", str(self.settings.seed)),
            *LEARNING,
        )
        return programs.trainer(self.server_port, self.trainer_folder, *flags, engine_port=self.engine_port)

    async def evaluate(self, name: str, engine: ChildSpec) -> SuccessRate:
        """Evaluate whatever ``engine`` serves on the held-out tasks."""
        folder, started = self.settings.folder / "evaluations" / name.replace(" ", "_"), time.monotonic()
        self.console.print(f"Evaluating {name} on {self.settings.eval_size} held-out tasks ...")
        serving = await self.group.start(engine)
        flags = ("--env.eval_size", str(self.settings.eval_size), "--env.data_dir_to_save_evals", str(folder))
        await self.group.run(self.environment("evaluate", *flags))
        await self.group.end(serving)
        self.rates[name] = read_success_rate(folder / "samples.jsonl")
        self.console.print(f"  success {self.rates[name]}")
        self.evaluation_s = time.monotonic() - started
        return self.rates[name]

    async def train(self) -> None:
        """Train until the trainer has done its steps, or the time that is left is needed for another evaluation."""
        training = Training(
            server=programs.trajectory_server(self.server_port, self.settings.folder / "queue.sqlite"),
            trainer=self.trainer(),
            environment=self.environment("serve", "--env.metrics_dir", str(self.metrics_folder)),
            metrics=self.trainer_folder / "metrics.jsonl",
            steps=self.settings.steps,
            until=self.started + 60 * self.settings.minutes - EVALUATION_MARGIN * self.evaluation_s,
            more=lambda: {"boxes": str(self._boxes())},
        )
        self.steps_done = (await training.run(self.group, self.console))[-1].step
        if self.steps_done < self.settings.steps:
            minutes = f"{self.settings.minutes:g} minutes (--minutes)"
            self.console.print(f"Training ended after {self.steps_done} steps, to be done in {minutes}.")

    def _boxes(self) -> int:
        """How many boxes the environment holds open now, as its tracker last wrote it."""
        return int(newest_value(self.metrics_folder / "metrics.jsonl", "sandbox/open"))


def report(run: Run) -> None:
    """Write ``summary.json`` and ``curve.png``, and show both."""
    folder, seconds = run.settings.folder, time.monotonic() - run.started
    rewards = read_rewards(run.metrics_folder / "metrics.jsonl")
    draw_png(rewards, {name: rate.rate for name, rate in run.rates.items()}, folder / "curve.png")
    summary = {
        "seed": run.settings.seed,
        "steps": run.steps_done,
        "seconds": round(seconds, 1),
        "held_out_success": {
            name: {"rate": rate.rate, "low_95": rate.low, "high_95": rate.high, "items": rate.items}
            for name, rate in run.rates.items()
        },
        "reward_by_step": {step: round(reward, 4) for step, reward in rewards},
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    run.console.print(draw_text(rewards), highlight=False, markup=False)
    table = Table(title=f"held-out tasks, full success, greedy, seed {run.settings.seed}")
    for column in ("policy", "success", "95 % interval", "tasks"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, rate in run.rates.items():
        interval = f"{rate.low:.1%} - {rate.high:.1%}"
        table.add_row(name, f"{rate.rate:.1%}", interval, f"{rate.successes}/{rate.items}")
    run.console.print(table)
    for line in last_lines(run, seconds):
        run.console.print(line, soft_wrap=True, highlight=False, markup=False)


def last_lines(run: Run, seconds: float) -> Iterator[str]:
    """What the run wrote, and the commands to look at it."""
    folder = run.settings.folder
    yield f"{seconds:.0f} s. Everything this run wrote is in {folder}:"
    for path in sorted(folder.iterdir()):
        yield f"  {path.name}{'/' if path.is_dir() else ''}"
    yield f"To look at the results: {shlex.join(['cat', str(folder / 'summary.json')])}"
    policy = programs.newest_checkpoint(run.trainer_folder)
    yield f"To serve the trained policy: {shlex.join([sys.executable, '-m', 'trainer.serve', '--model', str(policy)])}"


async def quickstart(settings: Settings, console: Console) -> None:
    """Evaluate, train, evaluate again, report."""
    engine_port, server_port = free_ports(2)
    async with ProcessGroup(settings.folder / "logs") as group:
        run = Run(settings, group, console, engine_port, server_port)
        await run.evaluate("random commands", run.random_policy())
        await run.evaluate("untrained policy", run.engine(settings.model))
        await run.train()
        await run.evaluate("trained policy", run.engine(str(programs.newest_checkpoint(run.trainer_folder))))
    report(run)


def parse(argv: Sequence[str] | None) -> Settings:
    parser = FlagParser(prog="./quickstart", description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="most training steps")
    parser.add_argument("--minutes", type=float, default=5.0, help="training ends early enough to be done in these")
    parser.add_argument("--eval-size", type=int, default=200, help="held-out tasks of each evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto", help="where tools run: auto, bubblewrap, docker")
    parser.add_argument("--model", default="tiny", help="a model folder, or tiny: the policy that ships")
    parser.add_argument("--folder", type=Path, help="where to write (default: runs/quickstart-<time>)")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.eval_size < 1 or not options.minutes > 0:
        parser.error("--steps and --eval-size must be at least 1, --minutes above 0")
    folder = options.folder or Path("runs") / time.strftime("quickstart-%Y%m%d-%H%M%S")
    return Settings(
        folder=folder.resolve(),
        steps=options.steps,
        minutes=options.minutes,
        eval_size=options.eval_size,
        seed=options.seed,
        backend=options.backend,
        model=options.model,
    )


def check(settings: Settings) -> None:
    """See that the run can begin, and make its folder. Raises: SettingWrong."""
    try:
        check_backend(settings.backend)
    except (UnknownBackend, SandboxUnavailable) as error:
        raise SettingWrong(f"--backend {settings.backend}: {error}") from error
    try:
        check_model(settings.model)
    except UsageError as error:
        raise SettingWrong(str(error)) from error
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingWrong(f"--folder: cannot write to {settings.folder}: {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code: 2 where a setting is wrong, 1 where a process failed, 130 after Ctrl-C."""
    settings = parse(argv)
    try:
        with programs.sigterm_as_interrupt():
            check(settings)
            asyncio.run(quickstart(settings, Console()))
    except SettingWrong as error:
        _say(f"./quickstart: {error}")
        return 2
    except ChildFailed as error:
        _say(f"./quickstart: {error}")
        return 1
    except KeyboardInterrupt:
        _say(f"Stopped; every process of this run has ended. What it wrote is in {settings.folder}.")
        return 130
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
