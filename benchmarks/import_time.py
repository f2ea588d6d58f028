"""Time that ``import atroposlib.envs.base`` takes, beside ``atroposlib`` 0.4.0.

    python benchmarks/import_time.py
    python benchmarks/import_time.py --original VENV/bin/python     # the venv is made if it is not there

Fresh interpreters import in turn, ours and the original, so that other work on the machine meets both. Reported are
medians: seconds on the wall and of CPU, from before to after the import statement, and the MiB of the process. Goal: 8
times faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from original import DEFAULT, ROOT, original_python

_PROBE = """
import resource, time
wall, cpu = time.perf_counter(), time.process_time()
{statement}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(time.perf_counter() - wall, time.process_time() - cpu, usage.ru_maxrss / 1024)
"""


@dataclass(frozen=True)
class Cost:
    """What an import took: seconds, CPU seconds, and the MiB of the process after it."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def cost_of_import(python: str, module: str, path: Path | None) -> Cost:
    """Import ``module`` in a fresh interpreter."""
    environment = {"PATH": "/usr/bin:/bin"} | ({"PYTHONPATH": str(path)} if path else {})
    script = _PROBE.format(statement=f"import {module}")
    command = [python, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd="/")
    wall, cpu, memory = map(float, done.stdout.split()[-3:])
    return Cost(wall, cpu, memory)


def median(costs: list[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.memory_mib for cost in costs),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=Path, default=DEFAULT, help="python of a venv for atroposlib 0.4.0")
    parser.add_argument("--module", default="atroposlib.envs.base")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    contestants = {"ours": (sys.executable, ROOT), "original": (original_python(arguments.original), None)}
    for python, path in contestants.values():
        cost_of_import(python, arguments.module, path)  # writes the byte code
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for _ in range(arguments.repeats):
        for name, (python, path) in contestants.items():
            costs[name].append(cost_of_import(python, arguments.module, path))
    for name, each in costs.items():
        cost = median(each)
        print(f"{name:9} {cost.wall_s:6.3f} s   {cost.cpu_s:6.3f} s CPU   {cost.memory_mib:5.0f} MiB")
    ours, original = median(costs["ours"]), median(costs["original"])
    print(f"{original.wall_s / ours.wall_s:.1f} times faster, {original.cpu_s / ours.cpu_s:.1f} times less CPU")


if __name__ == "__main__":
    main()
