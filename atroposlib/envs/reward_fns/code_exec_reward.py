"""Whether the code of a completion passes its tests, in the box of the rollout."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atroposlib.envs.reward_fns.code_exec.cases import Case, Script, cases_from
from atroposlib.envs.reward_fns.code_exec.extraction import code_in
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, gold_for_each, item_of_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError

_TIMED_OUT: Final = 124
_FOLDER_S: Final = 30.0


class Box(Protocol):
    """What it needs of a ``ToolContext``."""

    async def aterminal(self, command: str, timeout: float = 180) -> dict[str, Any]:
        """Run shell text: ``{"output", "exit_code", "error"}``."""

    async def awrite_file(self, path: str, content: str | bytes) -> dict[str, Any]:
        """Write a file, making its folders."""


@dataclass(frozen=True)
class _Run:
    passed: bool
    why: str


@registry.register
class CodeExecReward(RewardFunction):
    """1 where the code passes all tests, else 0; with ``partial`` the share of tests that it passes.

    The code is the last fenced block of ``language`` after the thoughts (else the last of no language, else all of the
    text). The tests are the right answer: assertions that are run after the code, a list of such, or
    ``[{"input": …, "output": …}]``, where the program reads one and must print the other (blanks at the ends of lines
    do not count). ``header`` and ``footer`` are Jinja templates over the item, put before the code and after the
    assertions: ``header: "{{ prompt }}"`` and ``footer: "check({{ entry_point }})"`` make HumanEval's items whole.

    It runs by ``interpreter`` in the box of ``ctx``, ``timeout_s`` for each test; what takes longer has failed. A box
    that cannot be used is an error. A program that ends before its assertions has failed, whatever its exit code.
    Assertions run in the process of the code, which could cheat them if it tried; input and output are compared
    outside of the box.

    Range: 0 or 1, or the share. Source: pass@1 of HumanEval (arXiv 2107.03374) and the test cases of APPS.
    """

    independent = True

    def __init__(
        self,
        language: str = "python",
        interpreter: str = "python3 -I",
        timeout_s: float = 10.0,
        partial: bool = False,
        header: str = "",
        footer: str = "",
        max_tests: int = 100,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s:g}")
        self.language = language.lower()
        self.interpreter = interpreter
        self.timeout_s = timeout_s
        self.partial = partial
        self.header = _Template(header)
        self.footer = _Template(footer)
        self.max_tests = max_tests

    async def acompute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        item: Any = None,
        ctx: Box | Sequence[Box] | None = None,
        **_: Any,
    ) -> list[Verdict]:
        """Run the tests. Raises: RewardError where there is no box, there are no tests, or the box cannot be used."""
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        items = item_of_each(completions, item)
        verdicts = []
        for index, (completion, tests, row) in enumerate(zip(completions, gold, items, strict=True)):
            box = ctx[index] if isinstance(ctx, Sequence) else ctx
            if box is None:
                raise RewardError("code_exec runs in the box of the rollout: it needs ctx")
            verdicts.append(await self._judge(box, self.get_content(completion), cases_from(tests), row))
        return verdicts

    async def _judge(self, box: Box, text: str, cases: Sequence[Case], item: Any) -> Verdict:
        if len(cases) > self.max_tests:
            raise RewardError(f"code_exec: {len(cases)} tests are more than max_tests ({self.max_tests})")
        code = code_in(text, self.language)
        if code is None:
            return Verdict(0.0, "there is no code")
        source = self.header(item) + code.rstrip() + "\n"
        folder = await _new_folder(box)
        try:
            return await self._judge_cases(box, folder, source, cases, item)
        finally:
            await box.aterminal(f"rm -rf {shlex.quote(folder)}", timeout=_FOLDER_S)

    async def _judge_cases(self, box: Box, folder: str, source: str, cases: Sequence[Case], item: Any) -> Verdict:
        passed, first_failure = 0, ""
        for number, case in enumerate(cases, 1):
            run = await self._run(box, f"{folder}/{number}", source, case, item)
            passed += run.passed
            if not run.passed:
                first_failure = first_failure or f"; test {number}: {run.why}"
                if not self.partial:
                    return Verdict(0.0, f"{passed} of the first {number} tests passed{first_failure}")
        return Verdict(passed / len(cases), f"{passed} of {len(cases)} tests passed{first_failure}")

    async def _run(self, box: Box, folder: str, source: str, case: Case, item: Any) -> _Run:
        if isinstance(case, Script):
            return await self._run_assertions(box, folder, source, case, item)
        await box.awrite_file(f"{folder}/program", source)
        await box.awrite_file(f"{folder}/input", case.given)
        result = await self._execute(box, folder, "<input 2>/dev/null")
        output = result["output"]
        if result["exit_code"] != 0:
            return _Run(False, _failure(result, self.timeout_s))
        right = _trimmed(output) == _trimmed(case.wanted)
        sign = "=" if right else "≠"
        return _Run(right, f"printed {quoted(output.strip())} {sign} {quoted(case.wanted.strip())} (truth)")

    async def _run_assertions(self, box: Box, folder: str, source: str, case: Script, item: Any) -> _Run:
        proof = uuid.uuid4().hex  # printed at the very end, so that an early exit(0) passes nothing
        program = f"{source}\n{case.code.rstrip()}\n{self.footer(item).rstrip()}\n{_printing(proof, self.language)}\n"
        await box.awrite_file(f"{folder}/program", program)
        result = await self._execute(box, folder, "</dev/null")
        if result["exit_code"] != 0:
            return _Run(False, _failure(result, self.timeout_s))
        if not result["output"].rstrip().endswith(proof):
            return _Run(False, "it ended before its tests did")
        return _Run(True, "passed")

    async def _execute(self, box: Box, folder: str, streams: str) -> dict[str, Any]:
        where = shlex.quote(folder)
        command = f"cd {where} && {self.interpreter} program {streams}; code=$?; rm -rf {where}; exit $code"
        return await box.aterminal(command, timeout=self.timeout_s)


async def _new_folder(box: Box) -> str:
    made = await box.aterminal("mktemp -d", timeout=_FOLDER_S)
    if made["exit_code"] != 0:
        raise RewardError(f"code_exec: the box makes no folder for the tests: {made['output'].strip()}")
    return str(made["output"]).strip()


def _printing(proof: str, language: str) -> str:
    statements = {"python": f"print({proof!r})", "javascript": f"console.log({proof!r})", "bash": f"echo {proof}"}
    try:
        return statements[language]
    except KeyError as error:
        raise RewardError(
            f"code_exec runs assertions in {', '.join(statements)}; tests of {language} need input and output"
        ) from error


def _failure(result: dict[str, Any], timeout_s: float) -> str:
    if result["exit_code"] == _TIMED_OUT and result["error"]:
        return f"it took longer than {timeout_s:g} s"
    last = result["output"].strip().rsplit("\n", 1)[-1]
    return f"exit code {result['exit_code']}" + (f": {quoted(last, 160)}" if last else "")


def _trimmed(output: str) -> str:
    return "\n".join(line.rstrip() for line in output.strip().split("\n"))


class _Template:
    """A Jinja template over the fields of an item."""

    def __init__(self, template: str) -> None:
        import jinja2
        from jinja2.sandbox import SandboxedEnvironment

        environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"template {template!r:.100}: {error}") from error

    def __call__(self, item: Any) -> str:
        """Fill it in."""
        fields = item if isinstance(item, dict) else {"item": item}
        return self._template.render(fields)
