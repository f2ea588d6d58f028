"""Record what a real vLLM answers to the requests that our clients send, as the pattern of the tests' stub.

It writes ``tests/atroposlib/envs/server_handling/vllm_recording.json``: every request, the status and the whole body of
its answer, and vLLM's version; what differs from one start to the next (ids, times, folders) is normalised. vLLM is
started here over the policy that ships with the trainer, by an interpreter that has it (about a minute on one core), or
a running one is asked:

    VLLM_PYTHON=/its/python python -m scripts.record_vllm
    python -m scripts.record_vllm --url http://127.0.0.1:8000

Such a one serves ``trainer/tiny_policy`` under the name "policy" with ``--max-model-len 1024 --generation-config vllm
--enable-auto-tool-choice --tool-call-parser hermes``.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from tests.atroposlib.envs.server_handling.real_engines import MAX_MODEL_LEN, VLLM_PYTHON, serving_vllm
from tests.atroposlib.envs.server_handling.vllm_recording import FILE, Exchange, Recording, ask, normalised

MODEL = "policy"
PROMPT = [86, 71, 78, 78]
"""``tell`` to the policy; printable ids to the stub, too."""
IN_IDS = {"logprobs": 0, "return_token_ids": True}
GREEDY = {"temperature": 0.0}
ON_AND_ON = {"ignore_eos": True}
TERMINAL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a shell command. Folder and exports persist.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
TASK = [
    {
        "role": "system",
        "content": "You work in a folder of small files. Do what is asked with the terminal.\n"
        'Then write "Answer:" and the result, or "Answer: done".',
    },
    {"role": "user", "content": "Count the lines of diary.log."},
]
CALL = {"name": "terminal", "arguments": '{"command": "wc -l < diary.log"}'}
CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"output": "3\\n", "exit_code": 0, "error": null}'},
]
TOO_LONG = "7" * (MAX_MODEL_LEN + 5)
SAY = [{"role": "user", "content": "Say lemon."}]

COMPLETIONS: dict[str, dict[str, Any]] = {
    "ids": {"prompt": PROMPT, "max_tokens": 40, **GREEDY, **IN_IDS},
    "ids, cut": {"prompt": PROMPT, "max_tokens": 3, **GREEDY, **IN_IDS},
    "ids, two answers": {"prompt": PROMPT, "max_tokens": 3, "n": 2, "temperature": 1.0, **ON_AND_ON, **IN_IDS},
    "probe": {"prompt": [1], "max_tokens": 1, "temperature": 1.0, **IN_IDS},
    "ids, a stop text": {"prompt": PROMPT, "max_tokens": 12, "stop": ["G", " "], **ON_AND_ON, **GREEDY, **IN_IDS},
    "ids of a text": {"prompt": "tell me", "max_tokens": 1, "temperature": 1.0, **ON_AND_ON, **IN_IDS},
    "scores": {"prompt": PROMPT, "max_tokens": 1, **GREEDY, "prompt_logprobs": 2, "return_token_ids": True},
    "text": {"prompt": "hello", "max_tokens": 40, **GREEDY},
    "text, alternatives": {"prompt": "tell me", "max_tokens": 3, "logprobs": 2, **GREEDY},
    "echo of ids": {"prompt": PROMPT, "max_tokens": 3, "echo": True, **GREEDY, **IN_IDS},
    "echo of a text": {"prompt": "hello", "max_tokens": 40, "echo": True, **GREEDY},
    "unknown model": {"model": "other", "prompt": PROMPT, "max_tokens": 3, **IN_IDS},
    "prompt too long": {"prompt": [5] * (MAX_MODEL_LEN + 5), "max_tokens": 1, **IN_IDS},
    "text too long": {"prompt": TOO_LONG, "max_tokens": 1},
    "no room": {"prompt": [5] * MAX_MODEL_LEN, "max_tokens": 1, **IN_IDS},
    "answer too long": {"prompt": PROMPT, "max_tokens": MAX_MODEL_LEN + 1, **IN_IDS},
    "max_tokens below one": {"prompt": PROMPT, "max_tokens": -2, **IN_IDS},
    "temperature below zero": {"prompt": PROMPT, "max_tokens": 3, "temperature": -1.0, **IN_IDS},
    "temperature in words": {"prompt": PROMPT, "max_tokens": 3, "temperature": "hot", **IN_IDS},
    "two greedy answers": {"prompt": PROMPT, "max_tokens": 3, "n": 2, **GREEDY, **IN_IDS},
    "unknown id": {"prompt": [99999], "max_tokens": 3, **IN_IDS},
}
CHATS: dict[str, dict[str, Any]] = {
    "chat": {"messages": SAY, "max_tokens": 40, **GREEDY},
    "chat, cut": {"messages": SAY, "max_tokens": 2, **GREEDY, "logprobs": True},
    "chat, two answers": {"messages": SAY, "max_tokens": 2, "n": 2, "temperature": 1.0, **ON_AND_ON},
    "chat, alternatives": {"messages": SAY, "max_tokens": 1, **GREEDY, "logprobs": True, "top_logprobs": 2},
    "tool call": {"messages": TASK, "tools": [TERMINAL], "max_tokens": 200, **GREEDY},
    "tool call, ids": {"messages": TASK, "tools": [TERMINAL], "max_tokens": 200, **GREEDY, "return_token_ids": True},
    "tool result": {"messages": [*TASK, *CALLED], "tools": [TERMINAL], "max_tokens": 200, **GREEDY},
    "chat, unknown model": {"model": "other", "messages": SAY, "max_tokens": 3},
    "chat too long": {"messages": [{"role": "user", "content": TOO_LONG}], "max_tokens": 3},
}
OTHERS = {
    "health": Exchange("GET", "/health"),
    "models": Exchange("GET", "/v1/models"),
    # asked where completions are answered with 404, as for an unknown model
    "another dialect": Exchange(
        "POST",
        "/generate",
        {"model": "other", "prompt": {"prompt_token_ids": PROMPT}, "max_tokens": 3, "logprobs": 0},
    ),
}


def requests() -> dict[str, Exchange]:
    """What is asked, by name."""
    texts = {name: Exchange("POST", "/v1/completions", {"model": MODEL, **body}) for name, body in COMPLETIONS.items()}
    chats = {name: Exchange("POST", "/v1/chat/completions", {"model": MODEL, **body}) for name, body in CHATS.items()}
    return {**OTHERS, **texts, **chats}


def record(url: str) -> Recording:
    """Ask the vLLM at ``url`` everything."""
    version = str(ask(url, Exchange("GET", "/version")).answer["version"])
    answered = {name: normalised(ask(url, request)) for name, request in requests().items()}
    return Recording(version, MODEL, MAX_MODEL_LEN, answered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a vLLM that runs already, without /v1")
    parser.add_argument("--output", type=Path, default=FILE)
    options = parser.parse_args()
    if not options.url and not VLLM_PYTHON:
        parser.error("set VLLM_PYTHON to an interpreter that has vLLM, or give the --url of one that runs")
    with contextlib.ExitStack() as stack:
        url = options.url
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(serving_vllm(folder / "log"))
        recording = record(url)
    options.output.write_text(recording.to_json())
    size = options.output.stat().st_size
    print(f"{len(recording.exchanges)} answers of vLLM {recording.version}, {size:,} bytes, in {options.output}")


if __name__ == "__main__":
    main()
