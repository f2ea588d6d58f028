"""Documents that agents read on demand: a folder with a ``SKILL.md`` each, in the open agentskills.io form."""

from skills.catalog import Catalog, bundled
from skills.skill import Skill, SkillError, read_skill

__all__ = ["Catalog", "Skill", "SkillError", "bundled", "read_skill"]
