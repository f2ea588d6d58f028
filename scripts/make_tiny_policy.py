"""Make the tiny policy that ships in ``trainer/tiny_policy``: a tokenizer of about a thousand words and a Qwen2 model
of about half a million parameters, from generated traces.

What the traces teach is the *format*: how a tool is called, how an answer is written, that some questions need no
tool. Their commands are mostly drawn at random (35 % from the shell's repertoire, mostly of the family that the request
belongs to), or by a habit that was itself drawn at random (43 %); 22 % are right on purpose, so that reinforcement
learning has something to find. A habit outweighs what is right, hence a greedy policy mostly does the wrong thing. Half
of the answers are wrong. With the defaults it takes about five minutes on one core.

    python scripts/make_tiny_policy.py [--output trainer/tiny_policy] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from environments.terminal_test_env import tasks as family
from environments.terminal_test_env.repertoire import REPERTOIRE, random_command
from environments.terminal_test_env.tasks import SYSTEM_PROMPT, Task
from environments.tools.registry import tools

TEMPLATE = Path(__file__).parent.parent / "trainer" / "tiny_policy" / "chat_template.jinja"
OTHER_TOOLS = ("process", "read_file", "write_file", "patch", "search_files", "todo")
OTHER_SYSTEM_PROMPTS = (None, "You are a helpful assistant.", "You are an agent with tools.")
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]

Message = dict[str, Any]
Habits = dict[tuple[str, int], str]
"""The command that a novice is used to, for each phrasing of each intent."""


@dataclass(frozen=True)
class Trace:
    """One conversation, with the tools that its prompt offers."""

    messages: list[Message]
    tools: list[dict[str, Any]]


# --- traces ---------------------------------------------------------------------------------------------------------


def make_trace(rng: random.Random, task: Task, menus: Sequence[list[dict[str, Any]]], habits: Habits) -> Trace:
    """A conversation of one of four kinds: one command (mostly), two commands, any of many tools, no tool at all."""
    kind = rng.choices(("one", "two", "other", "none"), weights=(80, 5, 8, 7))[0]
    offered = [tools()["terminal"].schema()]
    if kind == "other" or rng.random() < 0.15:
        offered = rng.choice(menus)
    if kind == "none":
        question, answer = question_without_tool(rng)
        return Trace([*opening(rng, question), say(answer)], offered)
    if kind == "other":
        return Trace([*opening(rng, task["prompt"]), *call_any_tool(rng, task, offered)], offered)
    messages = opening(rng, task["prompt"])
    result: dict[str, Any] = {}
    for result, command in run_commands(
        task, [novice_command(rng, task, habits) for _ in range(1 if kind == "one" else 2)]
    ):
        messages += [call("terminal", {"command": command}), tool_says(json.dumps(result, ensure_ascii=False))]
    return Trace([*messages, say(f"Answer: {novice_answer(rng, task, result)}")], offered)


def call_any_tool(rng: random.Random, task: Task, offered: list[dict[str, Any]]) -> list[Message]:
    """A call with arguments that fit the schema of one of the tools, some result, some answer."""
    function = rng.choice(offered)["function"]
    arguments = random_arguments(rng, function["parameters"], task["prompt"])
    result = rng.choice(({"error": "not found"}, {"success": True}, {"content": rng.choice(family.WORDS)}))
    answer = say(f"Answer: {rng.choice(family.WORDS)}")
    return [call(function["name"], arguments), tool_says(json.dumps(result)), answer]


def novice_command(rng: random.Random, task: Task, habits: Habits) -> str:
    """What a novice tries: mostly something at random, now and then the right thing.

    A habit is a command of the family that was drawn for a phrasing of a request without a look at what is right. It is
    what the novice does most often, so that a greedy policy does it too.
    """
    like = commands_like(task["intent"])
    tries = (REPERTOIRE, like, [habits[task["intent"], task["phrasing"]]])
    templates = rng.choices((*tries, None), weights=(8, 27, 43, 22))[0]
    return random_command(rng, task["prompt"], templates) if templates else task["solution"]


def make_habits(rng: random.Random) -> Habits:
    return {
        (intent.name, phrasing): rng.choice(commands_like(intent.name))
        for intent in family.INTENTS
        for phrasing in range(len(intent.phrasings))
    }


def commands_like(name: str) -> list[str]:
    """The commands of the family of an intent."""
    ours = next(intent.family for intent in family.INTENTS if intent.name == name)
    return [intent.command for intent in family.INTENTS if intent.family == ours]


def novice_answer(rng: random.Random, task: Task, result: dict[str, Any]) -> str:
    """What the command printed, half of the time; else something that looks like an answer."""
    printed = result["output"].split("\n")[0] or "done"
    if rng.random() < 0.5:
        return printed
    return rng.choice((str(rng.randrange(100)), rng.choice(family.WORDS), rng.choice(list(task["files"])), "done"))


def run_commands(task: Task, commands: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """What the tool ``terminal`` answers to each of ``commands``, run one after another on the task's files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in task["files"].items():
            Path(folder, name).write_text(text)
        for command in commands:
            ran = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            yield {"output": ran.stdout, "exit_code": ran.returncode, "error": None}, command


def make_exercise(rng: random.Random) -> Trace:
    """A short request without tools: repeat some words, or what a tool said. It teaches to copy, which is all the
    skill that a format needs."""
    things = " ".join(random_thing(rng) for _ in range(rng.choice((1, 1, 2, 3, 4))))
    if rng.random() < 0.5:
        return Trace([{"role": "user", "content": f"Say {things}."}, say(f"Answer: {things}")], [])
    result = json.dumps({"output": f"{things}\n", "exit_code": 0, "error": None})
    return Trace([{"role": "user", "content": "Go on."}, tool_says(result), say(f"Answer: {things}")], [])


def random_thing(rng: random.Random) -> str:
    name = f"{rng.choice(family.STEMS)}.{rng.choice(family.EXTENSIONS)}"
    return rng.choice((rng.choice(family.WORDS), f"'{rng.choice(family.WORDS)}'", name, str(rng.randrange(1000))))


def question_without_tool(rng: random.Random) -> tuple[str, str]:
    """A request that needs no tool, and its answer."""
    thing = random_thing(rng)
    return rng.choice(
        (
            (f"Say {thing}.", f"Answer: {thing}"),
            (f"Repeat {thing}.", f"Answer: {thing}"),
            (f"Which comes first: {thing} or {random_thing(rng)}?", f"Answer: {thing}"),
            ("Hello!", "Hello! How can I help?"),
            ("Who are you?", "I am a tiny policy."),
        )
    )


def random_arguments(rng: random.Random, schema: dict[str, Any], request: str) -> dict[str, Any]:
    """Arguments that fit a tool's schema: what it requires, filled with the words of the task family."""
    values: dict[str, Any] = {}
    for name in schema["required"]:
        kind = schema["properties"][name]
        if "enum" in kind:
            values[name] = rng.choice(kind["enum"])
        elif name == "path":
            values[name] = random_command(rng, request, ["{file}"])
        elif name == "command":
            values[name] = random_command(rng, request)
        elif kind["type"] == "string":
            values[name] = rng.choice(family.WORDS)
        elif kind["type"] == "integer":
            values[name] = rng.randrange(1, 10)
        else:
            values[name] = [] if kind["type"] == "array" else kind["type"] == "boolean"
    return values


def make_menus(rng: random.Random, count: int) -> list[list[dict[str, Any]]]:
    """Schemas of the terminal and up to five other tools, in mixed order."""
    menus = []
    for _ in range(count):
        names = ["terminal", *rng.sample(OTHER_TOOLS, rng.randint(0, 5))]
        rng.shuffle(names)
        menus.append([tools()[name].schema() for name in names])
    return menus


def opening(rng: random.Random, request: str) -> list[Message]:
    system = SYSTEM_PROMPT if rng.random() < 0.9 else rng.choice(OTHER_SYSTEM_PROMPTS)
    start = [{"role": "system", "content": system}] if system else []
    return [*start, {"role": "user", "content": request}]


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_says(text: str) -> Message:
    return {"role": "tool", "content": text}


def call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


# --- tokenizer and model --------------------------------------------------------------------------------------------


def make_tokenizer(traces: Sequence[Trace], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE with single digits, ChatML's special tokens and the Hermes tags as plain added tokens."""
    backend = Tokenizer(models.BPE())
    pieces = Regex(r" ?[A-Za-z]+|\d| ?[^\sA-Za-z\d]+|\s")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    wrap = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "padding_side": "left"}
    renderer = PreTrainedTokenizerFast(tokenizer_object=backend, **wrap)
    renderer.chat_template = TEMPLATE.read_text()
    corpus = [renderer.apply_chat_template(each.messages, tools=each.tools, tokenize=False) for each in traces]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    backend.add_tokens(TAGS)  # not special, so that decoding without special tokens keeps them, as with Qwen and Hermes
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=2048, **wrap)
    tokenizer.chat_template = renderer.chat_template
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save it under the class name that every version of transformers knows; version 5 writes one that 4 does not."""
    tokenizer.save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2) + "\n")


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,  # engines that keep a packed copy of the head miss updates of a tied one
        initializer_range=0.08,  # at the usual 0.02 so small a model does not learn to copy in a few hundred steps
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


@dataclass(frozen=True)
class Batch:
    """Traces that begin alike. ``prefix`` is (1, tokens); the rest, and which of it is taught, are (rows, tokens)."""

    prefix: torch.Tensor
    ids: torch.Tensor
    attention: torch.Tensor
    taught: torch.Tensor


def make_batches(tokenizer: PreTrainedTokenizerFast, traces: Sequence[Trace], tokens: int) -> list[Batch]:
    """Batches of about ``tokens`` tokens: of traces that share their system message, and of like length.

    The system message with its tools is most of a trace. Where all rows share it, it is computed once.
    """
    shared: dict[tuple[int, ...], list[list[tuple[int, int]]]] = {}
    for trace in traces:
        encoded = tokenizer.apply_chat_template(
            trace.messages, tools=trace.tools or None, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = encoded["input_ids"]
        split = ids.index(tokenizer.eos_token_id) + 1
        rest = list(zip(ids[split:], encoded["assistant_masks"][split:], strict=True))
        shared.setdefault(tuple(ids[:split]), []).append(rest)
    batches = []
    for prefix, rows in shared.items():
        rows.sort(key=len)
        while rows:
            count = max(1, tokens // len(rows[-1]))
            batches.append(collate(prefix, rows[-count:], tokenizer.pad_token_id))
            del rows[-count:]
    return batches


def collate(prefix: tuple[int, ...], rows: Sequence[list[tuple[int, int]]], padding: int) -> Batch:
    width = max(map(len, rows))
    padded = torch.tensor([[*row, *[(padding, 0)] * (width - len(row))] for row in rows])
    attention = torch.tensor([[1] * (len(prefix) + len(row)) + [0] * (width - len(row)) for row in rows])
    return Batch(torch.tensor([prefix]), padded[..., 0], attention, padded[..., 1])


def train(model: Qwen2ForCausalLM, batches: Sequence[Batch], *, peak: float) -> float:
    """Teach the assistant's tokens of each batch, in order; returns the mean loss of the last ones."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    losses: list[float] = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / 30) * (0.55 + 0.45 * math.cos(math.pi * step / len(batches)))
        loss = taught_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step:4d} of {len(batches)}  loss {fmean(losses[-50:]):.3f}", flush=True)
    return fmean(losses[-50:])


def taught_loss(model: Qwen2ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the assistant's tokens; gradients flow through the shared prefix too."""
    cache = DynamicCache()
    model.model(batch.prefix, cache=cache, use_cache=True)
    cache.batch_repeat_interleave(len(batch.ids))
    hidden = model.model(batch.ids, attention_mask=batch.attention, cache=cache, use_cache=True).last_hidden_state
    taught = batch.taught[:, 1:].bool()
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][taught]), batch.ids[:, 1:][taught])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=TEMPLATE.parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traces", type=int, default=8000)
    parser.add_argument("--exercises", type=int, default=30000)
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    tasks = family.make_tasks(options.traces, seed=options.seed, split="train")
    menus, habits = make_menus(rng, 32), make_habits(rng)
    traces = [make_trace(rng, task, menus, habits) for task in tasks]
    exercises = [make_exercise(rng) for _ in range(options.exercises)]
    tokenizer = make_tokenizer([*traces[:1000], *exercises[:500]], vocabulary=1024)
    model = make_model(tokenizer)
    exercise_batches, trace_batches = (make_batches(tokenizer, each, tokens=1500) for each in (exercises, traces))
    curriculum = rng.sample(both := [*exercise_batches, *rng.sample(trace_batches, len(trace_batches) // 4)], len(both))
    for _ in range(options.epochs):
        curriculum += rng.sample(trace_batches, len(trace_batches))
    loss = train(model, curriculum, peak=options.peak)
    model.save_pretrained(options.output)
    save_tokenizer(tokenizer, options.output)
    size = sum(file.stat().st_size for file in options.output.iterdir())
    print(f"{model.num_parameters():,} parameters, loss {loss:.3f}, {size:,} bytes in {options.output}")


if __name__ == "__main__":
    main()
