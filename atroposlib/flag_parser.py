"""The command lines of programs that are no environments: what is wrong with one is said in one line."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

_UNKNOWN = re.compile(r"unrecognized arguments: (?:\S+ )*?(--?[A-Za-z][\w-]*)")


class FlagParser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the flag that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Raises: SystemExit (2)."""
        self.exit(2, f"{self.prog}: {message}{self._meant(message)} (--help lists the flags)\n")

    def _meant(self, message: str) -> str:
        unknown = _UNKNOWN.search(message)
        known = [flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        near = get_close_matches(unknown[1], known, n=1) if unknown else []
        return f"; is {near[0]} meant?" if near else ""
