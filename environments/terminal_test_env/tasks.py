"""The task family: questions about, and small edits of, a handful of real files, made from a seed.

A task is an *intent* (count the lines, rename, …), one of its phrasings, and parameters: file names and words. The
triple (intent, phrasing, subject) decides by a hash whether a task may be trained on or is held out, so that no
held-out triple is ever seen in training, whatever the seeds and the counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2s
from typing import Literal, TypedDict

SYSTEM_PROMPT = """You work in a folder of small files. Do what is asked with the terminal.
Then write "Answer:" and the result, or "Answer: done"."""

Kind = Literal["question", "edit"]
Family = Literal["look", "search", "change"]


class Task(TypedDict):
    """One item. ``solution`` is a reference command, right only in an untouched copy of ``files``."""

    id: str
    intent: str
    phrasing: int
    kind: Kind
    prompt: str
    files: dict[str, str]
    solution: str


@dataclass(frozen=True)
class Intent:
    """What is wanted: a command that does it, phrasings that ask for it; a family holds what a novice mixes up."""

    name: str
    family: Family
    command: str
    phrasings: tuple[str, ...]
    kind: Kind = "question"

    @property
    def subject(self) -> str:
        """The name of the parameter by which the family is split."""
        return next(name for name in ("ext", "file", "word") if f"{{{name}}}" in self.command)


# fmt: off
INTENTS: tuple[Intent, ...] = (
    Intent("lines", "look", "wc -l < {file}", ("How many lines does {file} have?", "Count the lines of {file}.")),
    Intent("words", "look", "wc -w < {file}", ("How many words does {file} have?", "Count the words of {file}.")),
    Intent("bytes", "look", "wc -c < {file}", ("How many bytes does {file} have?", "Give the bytes of {file}.")),
    Intent("first", "look", "head -n 1 {file}", ("What is the first line of {file}?", "Show the top line of {file}.")),
    Intent("last", "look", "tail -n 1 {file}", ("What is the last line of {file}?", "Show the bottom line of {file}.")),
    Intent("sum", "search", "awk '{{s+=$1}} END {{print s}}' {file}",
           ("What is the sum of the numbers in {file}?", "Add up the numbers in {file}.")),
    Intent("maximum", "search", "sort -n {file} | tail -n 1",
           ("What is the largest number in {file}?", "Find the maximum of {file}.")),
    Intent("find", "search", "grep -l '{word}' *", ("Which file contains '{word}'?", "Where is '{word}' written?")),
    Intent("largest", "search", "ls -S *.{ext} | head -n 1",
           ("Which .{ext} file is the largest?", "Name the biggest .{ext} file.")),
    Intent("append", "change", "echo '{word}' >> {file}",
           ("Append the line '{word}' to {file}.", "Add '{word}' at the end of {file}."), "edit"),
    Intent("create", "change", "echo '{word}' > {new_file}",
           ("Create {new_file} with the line '{word}'.", "Make a new file {new_file} that says '{word}'."), "edit"),
    Intent("replace", "change", "sed -i 's/{word}/{new_word}/g' {file}",
           ("Replace '{word}' by '{new_word}' in {file}.", "Change every '{word}' to '{new_word}' in {file}."), "edit"),
    Intent("rename", "change", "mv {file} {new_file}",
           ("Rename {file} to {new_file}.", "Give {file} the name {new_file}."), "edit"),
)
STEMS = (
    "notes", "data", "list", "report", "draft", "plan", "index", "log", "users", "items", "orders", "cities", "colors",
    "recipe", "memo", "diary", "letter", "budget", "scores", "inbox", "garden", "stock", "menu", "songs",
)
WORDS = (
    "apple", "maple", "river", "stone", "cloud", "tiger", "lemon", "copper", "violet", "marble", "harbor", "meadow",
    "falcon", "ginger", "pepper", "saddle", "velvet", "walnut", "candle", "anchor", "basket", "bridge", "carpet",
    "desert", "engine", "forest", "garlic", "hammer", "island", "jacket", "kettle", "ladder",
)
# fmt: on
EXTENSIONS = ("txt", "csv", "md", "log", "dat", "ini")
HELD_OUT_SHARE = 4  # one triple in four


def held_out(intent: Intent, phrasing: int, subject: str) -> bool:
    """Whether this triple of template parameters belongs to the evaluation and never to training."""
    return blake2s(f"{intent.name}|{phrasing}|{subject}".encode()).digest()[0] % HELD_OUT_SHARE == 0


def make_tasks(count: int, *, seed: int, split: Literal["train", "held_out"]) -> list[Task]:
    """Make ``count`` different tasks of one split; the intents take turns. Same arguments, same tasks."""
    rng = random.Random(f"{seed}|{split}")
    tasks: list[Task] = []
    while len(tasks) < count:
        intent = INTENTS[len(tasks) % len(INTENTS)]
        phrasing, parameters = rng.randrange(len(intent.phrasings)), _parameters(rng)
        if held_out(intent, phrasing, parameters[intent.subject]) != (split == "held_out"):
            continue
        tasks.append(
            Task(
                id=f"{split}-{seed}-{len(tasks)}",
                intent=intent.name,
                phrasing=phrasing,
                kind=intent.kind,
                prompt=intent.phrasings[phrasing].format(**parameters),
                files=_files(rng, intent, parameters),
                solution=intent.command.format(**parameters),
            )
        )
    rng.shuffle(tasks)
    return tasks


def _parameters(rng: random.Random) -> dict[str, str]:
    """Draw every parameter of a template; ``new_…`` differs from the one it replaces."""
    stem, new_stem = rng.sample(STEMS, 2)
    word, new_word = rng.sample(WORDS, 2)
    ext = rng.choice(EXTENSIONS)
    new_file = f"{new_stem}.{rng.choice(EXTENSIONS)}"
    return {"file": f"{stem}.{ext}", "new_file": new_file, "word": word, "new_word": new_word, "ext": ext}


def _files(rng: random.Random, intent: Intent, parameters: dict[str, str]) -> dict[str, str]:
    """Make two to four files in which the intent has one answer, and in which an edit changes something."""
    file, ext, word = parameters["file"], parameters["ext"], parameters["word"]
    others = rng.sample([stem for stem in STEMS if f"{stem}.{ext}" not in (file, parameters["new_file"])], 3)
    names = [file, *(f"{stem}.{ext}" for stem in others[: rng.randint(1, 3)])]
    lines = {name: _lines(rng, avoid=parameters) for name in names}
    if intent.name in ("sum", "maximum"):
        lines[file] = [str(rng.randrange(1, 100)) for _ in range(rng.randint(4, 9))]
    if intent.name == "replace":
        for i in rng.sample(range(len(lines[file])), rng.randint(1, len(lines[file]) - 1)):
            lines[file][i] += f" {word}"
    if intent.name == "find":
        rng.choice(list(lines.values())).append(word)
    rng.shuffle(names)
    files = {name: "".join(f"{line}\n" for line in lines[name]) for name in names}
    sizes = {len(text) for text in files.values()}
    return files if len(sizes) == len(files) else _files(rng, intent, parameters)


def _lines(rng: random.Random, *, avoid: dict[str, str]) -> list[str]:
    """Four to twelve lines of words: not sorted, one of them twice, the first, the third and the last not alike."""
    words = [word for word in WORDS if word not in avoid.values()]
    lines = [" ".join(rng.sample(words, rng.randint(1, 3))) for _ in range(rng.randint(4, 11))]
    lines.insert(2, rng.choice(lines[1:]))
    if lines == sorted(lines) or len({lines[0], lines[2], lines[-1]}) < 3:
        return _lines(rng, avoid=avoid)
    return lines
