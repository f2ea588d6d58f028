"""The bench by hand: one question at a time, prompts and answers changed and judged again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atroposlib.errors import RolloutInvalid
from environments.dataset_environment.questions import Question
from environments.dataset_environment.workbench.bench import Bench, Judged, with_prompt
from environments.dataset_environment.workbench.cases import keep_case
from environments.dataset_environment.workbench.display import Display

MENU = "[n]ext question  [a]sk again  [p]rompt  [w]rite an answer  [s]ave as a test  [q]uit"
END = "."


class Dialogue:
    """A session at the terminal. It waits for keys outside of the event loop, so that Ctrl-C ends it at once."""

    def __init__(self, bench: Bench, display: Display, run: Callable[[Any], Any], cases: Path, name: str) -> None:
        self._bench = bench
        self._display = display
        self._run = run
        self._cases = cases
        self._name = name
        self._number = 0
        self._question: Question | None = None
        self._judged: Judged | None = None
        self._commands: Mapping[str, Callable[[], None]] = {
            "": self._next,
            "n": self._next,
            "a": self._ask,
            "p": self._change_prompt,
            "w": self._write_answer,
            "s": self._save,
        }

    def hold(self) -> None:
        """Go on until the user quits, or the input ends."""
        self._next()
        while (key := self._read_line(f"{MENU}\n> ")) is not None:
            command = self._commands.get(key.strip().lower()[:1])
            if key.strip().lower()[:1] == "q":
                return
            if command is None:
                self._display.error(f"{key.strip()!r} is none of the letters")
                continue
            command()

    def _next(self) -> None:
        self._number += 1
        self._question = self._run(self._bench.next_question())
        self._display.question(self._at_hand, self._number)
        self._ask()

    def _ask(self) -> None:
        self._judged = None
        try:
            with self._display.console.status("the model answers …"):
                trial = self._run(self._bench.attempt(self._at_hand))
        except RolloutInvalid as error:
            self._display.error(f"no answer: {error}")
            return
        self._judged = Judged.of(trial)
        self._display.trial(trial, self._bench.model_name)

    def _change_prompt(self) -> None:
        text = self._read_text("the new prompt")
        if text:
            self._question = with_prompt(self._at_hand, text)
            self._display.question(self._at_hand, self._number)
            self._ask()

    def _write_answer(self) -> None:
        text = self._read_text("the answer")
        if text is not None:
            judged: Judged = self._run(self._bench.judge(self._at_hand, text))
            self._judged = judged
            self._display.answer(text, "written answer")
            self._display.score(judged.score)

    def _save(self) -> None:
        if self._judged is None or self._judged.score.reward is None:
            self._display.error("there is no judged answer to save")
            return
        try:
            test = keep_case(self._cases, self._name, self._bench.config, self._at_hand, self._judged)
        except ValueError as error:
            self._display.error(f"not kept: {error}")
            return
        self._display.note(f"kept; to check it: pytest {test}")

    @property
    def _at_hand(self) -> Question:
        assert self._question is not None
        return self._question

    def _read_text(self, what: str) -> str | None:
        """Lines up to one that holds a dot only; None where the input ended before."""
        self._display.note(f"Type {what}; a line with a dot alone ends it.")
        lines: list[str] = []
        while (line := self._read_line("| ")) != END:
            if line is None:
                return None
            lines.append(line)
        return "\n".join(lines)

    def _read_line(self, prompt: str) -> str | None:
        try:
            return self._display.console.input(prompt, markup=False)
        except EOFError:
            return None
