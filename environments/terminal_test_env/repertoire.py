"""What a novice types: random commands of the shell, about the files and words that a request names."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from environments.terminal_test_env.tasks import EXTENSIONS, INTENTS, STEMS, WORDS

DISTRACTORS: tuple[str, ...] = ("ls", "cat {file}", "wc {file}", "sort {file}", "touch {file}")
"""Commands that belong to a shell's repertoire too, and do what no intent asks for."""
REPERTOIRE: tuple[str, ...] = (*(intent.command for intent in INTENTS), *DISTRACTORS)

_FILE = re.compile(r"\b[a-z]+\.[a-z]+\b")
_WORD = re.compile(r"'([a-z]+)'")
_EXT = re.compile(r" \.([a-z]+)\b")


def random_command(rng: random.Random, request: str, templates: Sequence[str] = REPERTOIRE) -> str:
    """One of ``templates``, filled from the request in the order of its words; what it does not name is made up."""
    files = _FILE.findall(request) or [f"{rng.choice(STEMS)}.{rng.choice(EXTENSIONS)}"]
    words = _WORD.findall(request) or [rng.choice(WORDS)]
    ext = next(iter(_EXT.findall(request)), files[0].partition(".")[2])
    parameters = {"file": files[0], "new_file": files[-1], "word": words[0], "new_word": words[-1], "ext": ext}
    return rng.choice(templates).format(**parameters)
