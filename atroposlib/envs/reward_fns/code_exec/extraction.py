"""Where in a completion its code stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from atroposlib.envs.reward_fns.reward_function import after_thoughts

_FENCE: Final = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*$", re.MULTILINE)
_ALIASES: Final = {"py": "python", "python3": "python", "js": "javascript", "sh": "bash", "shell": "bash", "c++": "cpp"}


@dataclass(frozen=True)
class Block:
    """A fenced block; ``language`` is ``""`` where the fence names none."""

    language: str
    code: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text; the last one may be left open by an answer that was cut off."""
    found: list[Block] = []
    opened: tuple[str, str, int] | None = None
    for fence in _FENCE.finditer(text):
        marks, language = fence[1], fence[2].lower()
        if opened is None:
            opened = (marks, _ALIASES.get(language, language), fence.end() + 1)
        elif marks[0] == opened[0][0] and len(marks) >= len(opened[0]) and not language:
            found.append(Block(opened[1], text[opened[2] : fence.start()]))
            opened = None
    if opened is not None:
        found.append(Block(opened[1], text[opened[2] :]))
    return found


def code_in(text: str, language: str) -> str | None:
    """After the thoughts, the last block of ``language``, else the last of none; the whole text if it has no block."""
    said = after_thoughts(text)
    found = blocks(said)
    if not found:
        return said.strip() or None
    wanted = _ALIASES.get(language, language)
    for name in (wanted, ""):
        matching = [block.code for block in found if block.language == name and block.code.strip()]
        if matching:
            return matching[-1]
    return None
