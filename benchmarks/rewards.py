"""How quickly completions are scored, and how often rightly, beside the reward functions of atroposlib 0.4.0.

    python benchmarks/rewards.py [--completions 10000]
    python benchmarks/rewards.py --original VENV/bin/python      # the venv is made if it is not there
    python benchmarks/rewards.py --cases

Completions with known verdicts are scored by accuracy, format and repetition_penalty: by the functions of the original
in one process (it has no other way), by one worker process, by all of them, and by all of them once more with one
completion among the others that would keep sympy busy for ever. Prints one line of JSON: completions per second,
milliseconds of CPU per completion, the share of right verdicts, and how many times the original that is.

``--cases`` has the original judge the cases of ``reward_cases.json`` instead, and writes what it says into that file,
from which ``scripts/write_reward_docs.py`` makes the table of the docs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from original import DEFAULT, original_python

from atroposlib.envs.reward_fns.scoring import Scores, score
from atroposlib.envs.reward_fns.workers.pool import WorkerPool

CASES = Path(__file__).with_name("reward_cases.json")
REWARDS = ["accuracy", "format", "repetition_penalty"]
HOSTILE = r"<think>easy</think> \boxed{9^{9^{9^{9}}}}"
WORDS = """
we first note that the train leaves before noon and each box holds several apples so their total grows while a price
falls by half because nobody pays twice for one ticket which means only three of seven remain after lunch
""".split()  # noqa: SIM905

ORIGINAL = """
import importlib.util, json, logging, sys, time
logging.disable(logging.CRITICAL)
from atroposlib.envs.reward_fns import registry

def made(case):
    if case["reward"] == "accuracyx":  # which its registry does not find
        from atroposlib.envs.reward_fns.r1_reward import AccuracyXReward
        return AccuracyXReward(**case["params"])
    return registry.create({"type": case["reward"], **case["params"]})

def one(case):
    truth = {} if case["truth"] is None else {"solution": [case["truth"]]}
    try:
        return made(case)([case["completion"]], **truth)[0]
    except Exception as error:
        return type(error).__name__

work = json.load(sys.stdin)
if "cases" in work:
    print(json.dumps([one(case) for case in work["cases"]]))
else:
    rewards = [registry.create(name) for name in work["rewards"]]
    for reward in rewards:
        reward(work["completions"][:5], solution=work["truths"][:5])
    began, busy = time.perf_counter(), time.process_time()
    scores = [reward(work["completions"], solution=work["truths"]) for reward in rewards]
    times = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - busy}
    print(json.dumps({**times, "accuracy": scores[0]}))
"""


def answers(rng: random.Random) -> tuple[str, str, bool]:
    """An answer as a model writes it, the truth, and whether they are the same."""
    value, other = rng.randint(2, 9999), rng.randint(10_000, 99_999)
    over, under = rng.randint(1, 9), rng.choice([2, 4, 5, 8])
    return rng.choice(
        [
            (rf"\boxed{{{value}}}", f"so it is {value}\n#### {value}", True),
            (rf"\boxed{{{value}}}", f"#### {other}", False),
            (f"#### {other:,}", f"#### {other}", True),
            (f"#### -{value}", str(-value), True),
            (f"The answer is {value}.", str(value), True),
            (f"The answer is {value}.", str(other), False),
            (rf"\boxed{{\frac{{{over}}}{{{under}}}}}", str(over / under), True),
            (rf"\boxed{{{value}\%}}", str(value), True),
            (rf"\boxed{{x = {value}}}", str(value), True),
            (rf"\boxed{{(x+{over})^2}}", rf"x^2+{2 * over}x+{over * over}", True),
            (rf"\boxed{{(x+{over})^2}}", rf"x^2+{2 * over}x+{over * over + 1}", False),
            (rf"\boxed{{\sqrt{{{over * over * 2}}}}}", rf"{over}\sqrt{{2}}", True),
            (rf"\boxed{{[{over}, {over + under})}}", rf"[{over},{over + under})", True),
            (rf"first \boxed{{{other}}}, no: \boxed{{{value}}}", str(value), True),
        ]
    )


def corpus(size: int, seed: int = 7) -> tuple[list[str], list[str], list[bool]]:
    """Completions of 60 to 300 words of thoughts with an answer, the truths, and the right verdicts."""
    rng = random.Random(seed)
    completions, truths, verdicts = [], [], []
    for _ in range(size):
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(6, 20))) for _ in range(rng.randint(8, 18))]
        answer, truth, right = answers(rng)
        completions.append(f"<think>{'. '.join(sentences)}.</think>\n{answer}")
        truths.append(truth)
        verdicts.append(right)
    return completions, truths, verdicts


@dataclass(frozen=True)
class Measured:
    """Scores, the time they took, and the processor time of this process and its workers (their start included)."""

    scores: Scores
    seconds: float
    cpu_s: float


def measure(completions: Sequence[str], truths: Sequence[str], workers: int | None) -> Measured:
    """Score all of them by so many workers."""
    busy = cpu_seconds()
    scores, seconds = asyncio.run(timed(completions, truths, workers))
    return Measured(scores, seconds, cpu_seconds() - busy)


async def timed(completions: Sequence[str], truths: Sequence[str], workers: int | None) -> tuple[Scores, float]:
    """The clock starts once the workers are warm."""
    pool = WorkerPool(workers)
    try:
        await score(REWARDS, completions[: 20 * pool.size], solution=[*truths[: 20 * pool.size]], pool=pool)
        began = time.perf_counter()
        ids = [f"item-{i}" for i in range(len(completions))]
        scores = await score(REWARDS, completions, solution=[*truths], item_id=ids, pool=pool)
        return scores, time.perf_counter() - began
    finally:
        pool.close()


def cpu_seconds() -> float:
    """Of this process and of all its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def share_right(values: Sequence[float | None], verdicts: Sequence[bool]) -> float:
    """How many verdicts are the right ones."""
    return sum(value == float(right) for value, right in zip(values, verdicts, strict=True)) / len(verdicts)


def accuracy_of(scores: Scores) -> list[float | None]:
    """The accuracy of each completion, None where it could not be judged."""
    return [each.parts[0].value if each.error is None else None for each in scores]


def ask_original(python: str, work: dict[str, Any]) -> Any:
    """Have the original do the work; isolated, so that it does not import this project instead of itself."""
    done = subprocess.run(
        [python, "-I", "-c", ORIGINAL], input=json.dumps(work), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def compare(size: int, python: str) -> dict[str, Any]:
    """Measure all three ways in one run."""
    completions, truths, verdicts = corpus(size)
    work = {"rewards": REWARDS, "completions": completions, "truths": truths}
    theirs = ask_original(python, work)
    one = measure(completions, truths, 1)
    calm = measure(completions, truths, None)
    place = size // 3
    hostile = measure(
        [*completions[:place], HOSTILE, *completions[place:]], [*truths[:place], "5", *truths[place:]], None
    )
    [error] = hostile.scores.failures.values()
    return {
        "completions": size,
        "cores": WorkerPool().size,
        "original": {
            "per_s": round(size / theirs["seconds"]),
            "cpu_ms": round(1000 * theirs["cpu_s"] / size, 2),
            "right": share_right(theirs["accuracy"], verdicts),
        },
        "one_worker": _row(one, size, verdicts),
        "all_workers": _row(calm, size, verdicts),
        "times_original_per_core": round(theirs["cpu_s"] / one.cpu_s, 2),
        "times_original": round(theirs["seconds"] / calm.seconds, 2),
        "with_hostile": {"seconds": round(hostile.seconds, 1), "named": str(error)},
    }


def _row(measured: Measured, size: int, verdicts: Sequence[bool]) -> dict[str, Any]:
    return {
        "per_s": round(size / measured.seconds),
        "cpu_ms": round(1000 * measured.cpu_s / size, 2),
        "right": share_right(accuracy_of(measured.scores), verdicts),
    }


def main() -> None:
    """Measure, or have the cases judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--original", type=Path, default=DEFAULT)
    parser.add_argument("--cases", action="store_true")
    arguments = parser.parse_args()
    python = original_python(arguments.original, "math-verify==0.9.0")
    if not arguments.cases:
        print(json.dumps(compare(arguments.completions, python)))
        return
    cases = json.loads(CASES.read_text())
    for case, said in zip(cases, ask_original(python, {"cases": cases}), strict=True):
        case["original"] = said
    CASES.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
