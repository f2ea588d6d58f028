"""Searching a text from left to right without going over any stretch twice."""

from __future__ import annotations

import re


class Seeker:
    """Remembers the last hit of each mark, so that asking again from before it costs nothing.

    Parsers ask from every call for marks that may stand far behind it or nowhere; without this a text of n unclosed
    calls takes time with the square of n.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, tuple[int, int]] = {}
        self._matched: dict[re.Pattern[str], tuple[int, int, re.Match[str] | None]] = {}

    def find(self, mark: str, start: int) -> int:
        """Where a mark stands from ``start`` on; the length of the text if nowhere."""
        begun, found = self._found.get(mark, (0, -1))
        if not begun <= start <= found:
            found = self.text.find(mark, start)
            found = len(self.text) if found < 0 else found
            self._found[mark] = (start, found)
        return found

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match from ``start`` on. The pattern must not look behind itself."""
        begun, found, match = self._matched.get(pattern, (0, -1, None))
        if not begun <= start <= found:
            match = pattern.search(self.text, start)
            found = match.start() if match else len(self.text)
            self._matched[pattern] = (start, found, match)
        return match

    def start_of(self, pattern: re.Pattern[str], start: int) -> int:
        """Where the first match from ``start`` on begins; the length of the text if there is none."""
        match = self.search(pattern, start)
        return match.start() if match else len(self.text)
