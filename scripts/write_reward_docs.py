"""Write the generated parts of ``docs/rewards.md``: what the docstrings say, and the cases of ``reward_cases.json``.

    python scripts/write_reward_docs.py [--check]

``--check`` writes nothing, and fails if the page is not what it would write.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.envs.reward_fns import RewardRegistry
from atroposlib.envs.reward_fns.parameters import parameters_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rewards.md"
CASES = ROOT / "benchmarks" / "reward_cases.json"


def rewards_section() -> str:
    """Each built-in reward: its docstring and its parameters."""
    registry = RewardRegistry()
    parts = []
    for name in registry.list():
        made_from = registry.get(name)
        parameters = ", ".join(map(_parameter, parameters_of(made_from).values()))  # type: ignore[arg-type]
        parts.append(f"### {name}\n\n{_markdown(inspect.getdoc(made_from) or '')}\n\nParameters: {parameters}.")
    return "\n\n".join(parts)


def cases_section() -> str:
    """The cases that the original judges otherwise, as a table."""
    rows = [
        "| reward | completion | truth | Atropos 0.4.0 | here | what is meant |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [_row(case) for case in json.loads(CASES.read_text()) if case["original"] != case["value"]]
    return "\n".join(rows)


def _row(case: Mapping[str, Any]) -> str:
    params = {name: value for name, value in case["params"].items() if name != "rewards"}
    reward = f"{case['reward']} ({', '.join(f'{k}={v}' for k, v in params.items())})" if params else case["reward"]
    truth = "" if case["truth"] is None else _code(case["truth"])
    said = case["original"] if isinstance(case["original"], str) else f"{case['original']:.3g}"
    return f"| {reward} | {_code(case['completion'])} | {truth} | {said} | {case['value']:.3g} | {case['note']} |"


def _code(value: Any) -> str:
    text = str(value).replace("\n", "⏎").replace("|", "\\|")
    text = text if len(text) <= 70 else text[:60] + "…"
    return f"`{text}`"


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return f"`{parameter.name}` (required)"
    shown = "…" if len(repr(parameter.default)) > 60 else repr(parameter.default)
    return f"`{parameter.name}={shown}`"


def _markdown(docstring: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", docstring, flags=re.DOTALL)


def page_with(sections: Mapping[str, str], page: str) -> str:
    """The page with what stands between ``<!-- name -->`` and ``<!-- end of name -->`` replaced."""
    for name, content in sections.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, rest = page.split(begin)
        page = f"{head}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    written = page_with({"rewards": rewards_section(), "cases": cases_section()}, PAGE.read_text())
    if check:
        return int(written != PAGE.read_text())
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
