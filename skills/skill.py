"""One skill: a folder with a ``SKILL.md`` whose front matter names and describes it.

The form is that of agentskills.io: YAML between two lines ``---`` with at least ``name`` and ``description``, then
the text. Unknown keys are ignored, so that skills written for other programs load here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_SKILL_CHARS = 100_000
MAX_FILE_BYTES = 1 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n(.*)\Z", re.DOTALL)


class SkillError(ValueError):
    """A skill cannot be read; the message names the file and what to change."""


@dataclass(frozen=True)
class Skill:
    """A skill and where it lies. ``text`` is the body of its ``SKILL.md``."""

    name: str
    description: str
    text: str
    folder: Path

    def files(self) -> tuple[str, ...]:
        """The other files of the skill, as paths relative to its folder, in order."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return tuple(sorted(str(path) for path in found if str(path) != "SKILL.md" and "__pycache__" not in path.parts))

    def read(self, path: str) -> str:
        """The text of one of its files.

        Raises: SkillError where the path leaves the folder, is no file, or is larger than 1 MiB.
        """
        target = (self.folder / path).resolve()
        if not target.is_relative_to(self.folder.resolve()):
            raise SkillError(f"{path!r} is outside of the skill {self.name!r}")
        if not target.is_file():
            raise SkillError(
                f"the skill {self.name!r} has no file {path!r}; it has {', '.join(self.files()) or 'none'}"
            )
        if target.stat().st_size > MAX_FILE_BYTES:
            raise SkillError(f"{path!r} of the skill {self.name!r} is larger than {MAX_FILE_BYTES} bytes")
        return target.read_text(encoding="utf-8")


def read_skill(folder: Path) -> Skill:
    """Read the skill in ``folder``.

    Raises: SkillError.
    """
    source = folder / "SKILL.md"
    if not source.is_file():
        raise SkillError(f"{folder} has no SKILL.md")
    content = source.read_text(encoding="utf-8")
    if len(content) > MAX_SKILL_CHARS:
        raise SkillError(f"{source} is longer than {MAX_SKILL_CHARS} characters; move detail into files beside it")
    found = FRONT_MATTER.match(content)
    if found is None or not found[2].strip():
        raise SkillError(f"{source} must begin with front matter between two lines '---' and go on with a text")
    front = _front_matter(source, found[1])
    return Skill(name=front["name"], description=front["description"], text=found[2].strip() + "\n", folder=folder)


def _front_matter(source: Path, text: str) -> dict[str, str]:
    try:
        front: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SkillError(f"the front matter of {source} is not YAML: {error}") from error
    if not isinstance(front, dict):
        raise SkillError(f"the front matter of {source} is not a mapping")
    name, description = front.get("name"), front.get("description")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise SkillError(f"{source}: 'name' must be 1-64 of a-z, 0-9, '.', '_' and '-', not {name!r}")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        raise SkillError(f"{source}: 'description' must be a text of 1-1024 characters")
    return {"name": name, "description": description.strip()}
