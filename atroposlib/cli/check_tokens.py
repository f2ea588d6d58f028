"""``python -m atroposlib.cli.check_tokens FILE.jsonl --tokenizer NAME``: check recorded groups without an engine.

Of every sample: ids, mask and logprobs line up; masks are the ids; logprobs are logprobs; the certificate's digest,
counts and chat template hold. What does not is shown token by token, with its text beside it.

Exits with 0 where all samples hold, 1 where one does not, 2 where the file or the tokenizer cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.envs.server_handling.chat_template import ChatTemplate
from atroposlib.envs.server_handling.token_check import (
    Problem,
    Reading,
    RecordedSample,
    malformation,
    problems_of,
)
from atroposlib.envs.server_handling.token_graph import MASKED
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.envs.tokenizers import load_tokenizer
from atroposlib.errors import ConfigError
from atroposlib.flag_parser import FlagParser
from atroposlib.line_file import json_lines
from atroposlib.wire import MAX_TOKEN_ID

AROUND = 6
"""Tokens shown before and after the one at fault."""
OF_ANOTHER_TOKENIZER = ("template", "vocabulary")


@dataclass(frozen=True)
class Finding:
    """A sample with problems; ``place`` is where it stands in the file."""

    place: str
    sample: RecordedSample
    problems: list[Problem]


@dataclass
class Report:
    """What was found in a file."""

    groups: int = 0
    good: int = 0
    uncertified: int = 0
    untrainable: int = 0
    certified: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, place: str, sample: RecordedSample, problems: list[Problem]) -> None:
        """Count a sample."""
        self.certified += sample.certificate is not None
        self.uncertified += sample.certificate is None
        if problems:
            self.findings.append(Finding(place, sample, problems))
        else:
            self.good += 1


def check_file(path: Path, reading: Reading | None, strict: bool = False) -> Report:
    """Check every sample of a JSONL file. ``strict``: a sample without a certificate is a finding.

    Raises: ConfigError where the file is no file of groups.
    """
    report = Report()
    for number, group in _groups(path):
        report.groups += 1
        for index in range(len(group["tokens"])):
            place = f"line {number}, sample {index}"
            sample = RecordedSample.of(group, index)
            if not sample.trainable:
                report.untrainable += 1
                continue
            problems = problems_of(sample, reading)
            if strict and sample.certificate is None:
                problems.append(Problem("uncertified", "the sample carries no certificate"))
            report.add(place, sample, problems)
    if not report.groups:
        raise ConfigError(f"{path} holds no groups")
    return report


def refuse_wrong_tokenizer(report: Report, name: str) -> None:
    """Raises: ConfigError where nothing is wrong but that the file was made with another tokenizer."""
    findings = [problem for finding in report.findings for problem in finding.problems]
    others = [problem for problem in findings if problem.reason in OF_ANOTHER_TOKENIZER]
    templates = sum(problem.reason == "template" for problem in others)
    if not others or len(others) < len(findings) or (report.good and templates < report.certified):
        return
    raise ConfigError(
        f"--tokenizer {name} is not the tokenizer of this file ({others[0].message}): name the one that the run used"
    )


def explain(finding: Finding, tokens: TokenText | None) -> str:
    """What is wrong, and the tokens around it: position, id, mask, logprob, text."""
    lines = [f"{finding.place}:"]
    for problem in finding.problems:
        at = "" if problem.position is None else f" at position {problem.position}"
        lines.append(f"  {problem.reason}{at}: {problem.message}")
        if problem.position is not None:
            lines += _table(finding.sample, problem.position, tokens)
    return "\n".join(lines)


def table_of(sample: RecordedSample, tokens: TokenText | None) -> str:
    """A whole sample, one token a line."""
    return "\n".join(_table(sample, None, tokens))


def _table(sample: RecordedSample, position: int | None, tokens: TokenText | None) -> Iterator[str]:
    start, end = (0, len(sample.ids)) if position is None else (max(0, position - AROUND), position + AROUND + 1)
    yield "        position       id     mask      logprob  text"
    for at in range(start, min(end, max(len(sample.ids), len(sample.mask)))):
        number, mask = _at(sample.ids, at), _at(sample.mask, at)
        logprob = _at(sample.logprobs or [], at)
        mark = "--> " if at == position else "    "
        shown = "masked" if mask == MASKED else mask
        yield f"    {mark}{at:8} {number!s:>8} {shown!s:>8} {_number(logprob):>12}  {_text(number, tokens)}"


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else "-"


def _number(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _text(number: Any, tokens: TokenText | None) -> str:
    if tokens is None or type(number) is not int or not 0 <= number <= MAX_TOKEN_ID:
        return ""
    if tokens.vocabulary is not None and number >= tokens.vocabulary:
        return "(outside the vocabulary)"
    return repr(tokens.decode([number]))


def _groups(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, group in json_lines(path):
        fault = malformation(group)
        if fault is not None:
            raise ConfigError(f"{path}: line {number}: {fault}")
        yield number, group


def _reading(name: str | None) -> Reading | None:
    if name is None:
        return None
    try:
        template = ChatTemplate(load_tokenizer(name))
    except ConfigError as error:
        raise ConfigError(str(error).replace("--env.tokenizer_name", "--tokenizer")) from error
    return Reading(template.tokens, template.digest)


def _summary(path: Path, report: Report) -> str:
    samples = report.good + len(report.findings)
    told = f"{path}: {report.groups} groups, {samples} samples, {report.good} hold, {len(report.findings)} do not"
    if report.uncertified:
        told += f"; {report.uncertified} carry no certificate"
    if report.untrainable:
        told += f"; {report.untrainable} more are marked as not trainable"
    reasons = Counter(problem.reason for finding in report.findings for problem in finding.problems)
    return told + "".join(f"\n  {reason}: {count}" for reason, count in reasons.most_common())


def main(argv: Sequence[str] | None = None) -> int:
    """Check one file and print what was found; the exit status."""
    parser = FlagParser(prog="check_tokens", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("file", type=Path, help="JSONL file of groups, as `process` writes it")
    parser.add_argument("--tokenizer", metavar="NAME", help="folder or Hub name of the run's tokenizer; adds texts")
    parser.add_argument("--strict", action="store_true", help="a sample without a certificate does not hold")
    parser.add_argument("--explain", type=int, default=5, metavar="N", help="show so many findings (default: 5)")
    parser.add_argument("--show", metavar="LINE:SAMPLE", help="print all tokens of one sample, such as 1:0, and end")
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except ConfigError as error:
        sys.stderr.write(f"check_tokens: {error}\n")
        return 2


def _run(arguments: argparse.Namespace) -> int:
    reading = _reading(arguments.tokenizer)
    tokens = None if reading is None else reading.tokens
    if arguments.show is not None:
        sys.stdout.write(table_of(_chosen(arguments.file, arguments.show), tokens) + "\n")
        return 0
    report = check_file(arguments.file, reading, arguments.strict)
    if arguments.tokenizer is not None:
        refuse_wrong_tokenizer(report, arguments.tokenizer)
    for finding in report.findings[: arguments.explain]:
        sys.stdout.write(explain(finding, tokens) + "\n")
    sys.stdout.write(_summary(arguments.file, report) + "\n")
    return 1 if report.findings else 0


def _chosen(path: Path, place: str) -> RecordedSample:
    line, _, index = place.partition(":")
    if not (line.isdecimal() and index.isdecimal()):
        raise ConfigError(f"--show {place}: write LINE:SAMPLE, such as 1:0")
    for number, group in _groups(path):
        if number == int(line) and int(index) < len(group["tokens"]):
            return RecordedSample.of(group, int(index))
    raise ConfigError(f"--show {place}: {path} has no such sample")


if __name__ == "__main__":
    sys.exit(main())
