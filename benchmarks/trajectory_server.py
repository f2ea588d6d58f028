"""CPU that the trajectory server takes for one group, pushed and delivered, beside ``atroposlib`` 0.4.0.

    python benchmarks/trajectory_server.py
    python benchmarks/trajectory_server.py --tokens 512 --groups 64 --no-gzip
    python benchmarks/trajectory_server.py --original VENV/bin/python     # the venv is made if it is not there

Both servers run under uvicorn in processes of their own, in turn. A trainer registers and drains ``/batch`` while
several connections post prepared bodies (tokens, masks, logprobs; three tenths of each sequence is prompt), gzipped
unless told otherwise; the trainer takes gzip, which our server does not use on one machine. Every delivered group is
counted. Reported are medians over ``--repeats`` runs. Goal: 15 times less CPU at 8 sequences of 4096 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from original import DEFAULT, ROOT, original_python

ENVIRONMENTS = 4
CONNECTIONS = 8
BATCH_SEQUENCES = 64
BODIES = 8
"""How many different bodies are prepared; they are posted over and over."""


@dataclass(frozen=True)
class Load:
    """What is posted: ``groups`` of ``sequences`` with ``tokens`` each."""

    groups: int
    sequences: int
    tokens: int
    gzipped: bool


@dataclass(frozen=True)
class Run:
    """What one run took: the server's CPU per group, wall time, and the times of single requests, in ms."""

    cpu_ms_per_group: float
    groups_per_s: float
    post_ms: float
    batch_ms: float


class Server:
    """``atroposlib.api.server:app`` of one installation, on a free port."""

    def __init__(self, python: str, path: Path | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "PYTHONPATH": str(path) if path else ""}
        command = [python, "-m", "uvicorn", "atroposlib.api.server:app", "--port", str(port), "--log-level", "error"]
        self._process = subprocess.Popen(command, env=environment, cwd="/")

    async def __aenter__(self) -> Server:
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(self.url):
                        return self
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)

    def cpu_s(self) -> float:
        """CPU seconds it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepared_bodies(load: Load) -> list[bytes]:
    """Bodies of the environments, as they go over the wire."""
    randomness = random.Random(0)
    bodies = []
    for number in range(BODIES):
        tokens = [[randomness.randrange(150_000) for _ in range(load.tokens)] for _ in range(load.sequences)]
        prompt = load.tokens * 3 // 10
        group = {
            "tokens": tokens,
            "masks": [[-100] * prompt + row[prompt:] for row in tokens],
            "inference_logprobs": [[1.0] * prompt + [-randomness.random() * 3 for _ in row[prompt:]] for row in tokens],
            "scores": [float(i % 2) for i in range(load.sequences)],
            "env_id": number % ENVIRONMENTS,
        }
        text = json.dumps(group).encode()
        bodies.append(gzip.compress(text, compresslevel=1) if load.gzipped else text)
    return bodies


async def register(http: aiohttp.ClientSession, load: Load) -> None:
    """Register a trainer and the environments."""
    trainer = {
        "wandb_group": "benchmark",
        "wandb_project": "benchmark",
        "batch_size": BATCH_SEQUENCES,
        "max_token_len": load.tokens,
        "checkpoint_dir": "",
        "save_checkpoint_interval": -1,
        "starting_step": 0,
        "num_steps": 1_000_000,
    }
    environment = {
        "max_token_length": load.tokens,
        "desired_name": "benchmark",
        "weight": 1.0,
        "group_size": load.sequences,
    }
    await ask(http, "POST", "/register", json=trainer)
    await ask(http, "GET", "/batch")
    for _ in range(ENVIRONMENTS):
        await ask(http, "POST", "/register-env", json=environment)


async def ask(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> bytes:
    """Send a request and return the whole answer."""
    async with http.request(method, path, **options) as answer:
        body = await answer.read()
        assert answer.status == 200, body[:500]
        return body


async def push_and_deliver(server: Server, load: Load, bodies: list[bytes]) -> Run:
    """Post all groups while a trainer drains them."""
    headers = {"content-type": "application/json"} | ({"content-encoding": "gzip"} if load.gzipped else {})
    waiting = list(range(load.groups))
    post_times: list[float] = []
    batch_times: list[float] = []

    async def post() -> None:
        while waiting:
            body = bodies[waiting.pop() % len(bodies)]
            began = time.perf_counter()
            await ask(http, "POST", "/scored_data", data=body, headers=headers)
            post_times.append(time.perf_counter() - began)

    async def drain() -> None:
        delivered = 0
        while delivered < load.groups * load.sequences:
            began = time.perf_counter()
            answer = await ask(http, "GET", "/batch")
            if len(answer) < 1000:
                await asyncio.sleep(0.01)
                continue
            batch_times.append(time.perf_counter() - began)
            delivered += sum(len(group["scores"]) for group in json.loads(answer)["batch"])

    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as http:
        await register(http, load)
        cpu, began = server.cpu_s(), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(drain())
            for _ in range(CONNECTIONS):
                tasks.create_task(post())
        wall, cpu = time.perf_counter() - began, server.cpu_s() - cpu
    return Run(
        1000 * cpu / load.groups,
        load.groups / wall,
        1000 * statistics.median(post_times),
        1000 * statistics.median(batch_times),
    )


async def measure(python: str, path: Path | None, load: Load, bodies: list[bytes]) -> Run:
    """One run against a fresh server."""
    async with Server(python, path) as server:
        return await push_and_deliver(server, load, bodies)


def main() -> None:
    """Measure both in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=Path, default=DEFAULT, help="python of a venv for atroposlib 0.4.0")
    parser.add_argument("--sequences", type=int, default=8, help="of a group; divides 64")
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence")
    parser.add_argument("--groups", type=int, default=48, help="all of them make whole batches of 64 sequences")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-gzip", action="store_true", help="post plain bodies")
    arguments = parser.parse_args()
    sequences = arguments.groups * arguments.sequences
    if sequences < BATCH_SEQUENCES or sequences % BATCH_SEQUENCES:
        parser.error(f"{arguments.groups} groups of {arguments.sequences} make no whole batches of {BATCH_SEQUENCES}")
    load = Load(arguments.groups, arguments.sequences, arguments.tokens, not arguments.no_gzip)
    bodies = prepared_bodies(load)
    contestants = {"ours": (sys.executable, ROOT), "original": (original_python(arguments.original), None)}
    runs: dict[str, list[Run]] = {name: [] for name in contestants}
    for _ in range(arguments.repeats):
        for name, (python, path) in contestants.items():
            runs[name].append(asyncio.run(measure(python, path, load, bodies)))
    cpu = {name: statistics.median(run.cpu_ms_per_group for run in each) for name, each in runs.items()}
    for name, each in runs.items():
        rate, post, batch = (
            statistics.median(getattr(run, key) for run in each) for key in ("groups_per_s", "post_ms", "batch_ms")
        )
        spread = ", ".join(f"{run.cpu_ms_per_group:.1f}" for run in each)
        print(
            f"{name:9} {cpu[name]:7.1f} ms CPU per group ({spread})   {rate:6.1f} groups/s   "
            f"post {post:.0f} ms   batch {batch:.0f} ms"
        )
    print(f"{cpu['original'] / cpu['ours']:.1f} times less CPU")


if __name__ == "__main__":
    main()
