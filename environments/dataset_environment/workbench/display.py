"""What the bench shows, in colour where the terminal has any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from atroposlib.envs.reward_fns.scoring import Part, Score
from environments.dataset_environment.dataset_env import Trial
from environments.dataset_environment.questions import Question

SHOWN_CHARS = 2_000
ROLE_STYLES = {"system": "dim", "user": "bold", "assistant": "green", "tool": "cyan"}
GOOD, MIDDLING = 0.75, 0.25


@dataclass(frozen=True)
class Display:
    """Writes to one console. ``debug`` shows whole texts, whole conversations and what the item holds."""

    console: Console
    debug: bool = False

    def question(self, question: Question, number: int | None = None) -> None:
        """The prompt, and the right answer where there is one."""
        title = f"question {question.id}" if number is None else f"{number}: question {question.id}"
        messages = question.conversation if self.debug else question.conversation[-1:]
        self._panel(title, Group(*(self._message(m["role"], str(m["content"])) for m in messages)), "blue")
        truths = {"right answer": question.answer, "ground truth": question.ground_truth}
        for name, truth in truths.items():
            if truth is not None:
                self._panel(name, Text(self._cut(str(truth))), "cyan")
        if self.debug:
            self._panel("item", Text(self._cut(repr(dict(question.row)))), "dim")

    def trial(self, trial: Trial, engine: str) -> None:
        """What the model answered, how long that took, and what it is worth."""
        usage, seconds = trial.result.usage, trial.result.timings.engine_s
        speed = f", {usage.completion_tokens / seconds:.0f} tokens/s" if seconds else ""
        about = f"{trial.result.stop_reason.value}; {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        self.answer(trial.result.final_response, f"answer of {engine}", f"{about} in {seconds:.2f} s{speed}")
        self.score(trial.score)

    def answer(self, text: str, title: str, about: str | None = None) -> None:
        """An answer, whoever gave it, and something about it."""
        self._panel(title, Text(self._cut(text), style=ROLE_STYLES["assistant"]), "green", about)

    def score(self, score: Score) -> None:
        """Every reward with its parts, and why."""
        if score.error is not None:
            self.error(f"could not be judged: {score.error}")
            return
        assert score.reward is not None
        style = f"bold {_style(score.reward)}"
        table = _table(f"reward {score.reward:.3f}", "reward function", "weight", "value", "ms", style=style)
        table.add_column("why", overflow="fold")
        for depth, part in _with_depth(score.parts):
            value = Text(f"{part.value:.3f}", style=_style(part.value))
            name = Text("  " * depth + part.name)
            table.add_row(name, f"{part.weight:g}", value, f"{part.seconds * 1000:.1f}", Text(self._cut(part.why)))
        self.console.print(table)

    def summary(self, trials: Sequence[Trial], failed: int) -> None:
        """Means over what was judged."""
        judged = [trial.score for trial in trials if trial.score.reward is not None]
        not_judged = failed + len(trials) - len(judged)
        table = _table(
            f"{len(judged)} answers judged, {not_judged} not", "reward function", "mean", "least", "greatest"
        )
        columns: dict[str, list[float]] = {}
        for score in judged:
            columns.setdefault("all together", []).append(score.reward or 0.0)
            for _, part in _with_depth(score.parts):
                columns.setdefault(part.name, []).append(part.value)
        for name, values in columns.items():
            table.add_row(Text(name), f"{fmean(values):.3f}", f"{min(values):.3f}", f"{max(values):.3f}")
        self.console.print(table)

    def error(self, message: str) -> None:
        """Something that went wrong, without an end of the session."""
        self.console.print(Text(message, style="bold red"))

    def note(self, message: str) -> None:
        """A line by the way."""
        self.console.print(Text(message, style="dim"))

    def _message(self, role: str, content: str) -> Text:
        shown = Text()
        if self.debug:
            shown.append(f"{role}: ", style="magenta")
        return shown.append(self._cut(content), style=ROLE_STYLES.get(role, ""))

    def _panel(self, title: str, content: RenderableType, border: str, about: str | None = None) -> None:
        below = Text(about) if about else None
        panel = Panel(
            content, title=Text(title), title_align="left", subtitle=below, subtitle_align="left", border_style=border
        )
        self.console.print(panel)

    def _cut(self, text: str) -> str:
        if self.debug or len(text) <= SHOWN_CHARS:
            return text
        half = SHOWN_CHARS // 2
        return f"{text[:half]}\n… {len(text) - 2 * half} characters, shown by --debug …\n{text[-half:]}"


def _table(title: str, first: str, *numbers: str, style: str = "bold") -> Table:
    table = Table(title=title, title_style=style, title_justify="left")
    table.add_column(first)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _with_depth(parts: Sequence[Part], depth: int = 0) -> Iterator[tuple[int, Part]]:
    for part in parts:
        yield depth, part
        yield from _with_depth(part.parts, depth + 1)


def _style(value: float) -> str:
    return "green" if value >= GOOD else "yellow" if value > MIDDLING else "red"
