"""The engines of a Slurm job: its nodes after the first ``NUM_TRAINING_NODES``, each with ports from 9000 on."""

from __future__ import annotations

import os
import subprocess

from atroposlib.errors import ConfigError

FIRST_PORT = 9000
GPUS_PER_NODE = 8


def slurm_urls() -> list[str]:
    """One URL per engine of the job; empty outside Slurm.

    A node runs ``8 // INFER_TP`` engines. Raises ``ConfigError`` where the job's variables make no sense.
    """
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if not nodelist:
        return []
    training, parallel = _number("NUM_TRAINING_NODES", 0), _number("INFER_TP", 1)
    nodes = _hostnames(nodelist)[training:]
    ports = [FIRST_PORT + index for index in range(max(1, GPUS_PER_NODE // max(1, parallel)))]
    return [f"http://{node}:{port}/v1" for node in nodes for port in ports]


def _number(variable: str, default: int) -> int:
    value = os.environ.get(variable, str(default))
    if not value.isdigit():
        raise ConfigError(f"the variable {variable} is {value!r}; it must be a number")
    return int(value)


def _hostnames(nodelist: str) -> list[str]:
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"scontrol cannot expand SLURM_JOB_NODELIST={nodelist!r}: {error}") from error
    return listed.stdout.split()
