"""All skills below some folders, by name: names and descriptions first, texts only when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from skills.skill import Skill, SkillError, read_skill


class Catalog(Mapping[str, Skill]):
    """The skills below ``folders``, at any depth.

    Raises: SkillError where a skill cannot be read, or where two have one name (which is meant is never guessed).
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._skills: dict[str, Skill] = {}
        for folder in folders:
            for source in sorted(folder.rglob("SKILL.md")):
                self._add(read_skill(source.parent))

    def _add(self, skill: Skill) -> None:
        other = self._skills.get(skill.name)
        if other is not None and other.folder.resolve() != skill.folder.resolve():
            raise SkillError(f"two skills are called {skill.name!r}: {other.folder} and {skill.folder}")
        self._skills[skill.name] = skill

    def __getitem__(self, name: str) -> Skill:
        return self._skills[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def index(self) -> str:
        """A line for each skill, for a system prompt."""
        return "\n".join(f"- {skill.name}: {skill.description}" for skill in self._skills.values())


def bundled() -> Catalog:
    """The skills that ship with this package."""
    return Catalog([Path(__file__).parent])
