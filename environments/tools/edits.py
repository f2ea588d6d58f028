"""Edits of texts, pure: replacement that forgives white space, and patches in the V4A form.

*** Begin Patch
*** Update File: src/app.py
@@ def main():
 context
-old line
+new line
*** Add File: notes.txt
+first line
*** Delete File: old.txt
*** End Patch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from environments.tools.base import ToolFailure

Normal = Callable[[str], str]
_FORGIVING: tuple[Normal, ...] = (str.rstrip, str.strip, lambda line: " ".join(line.split()))
"""How two lines are compared where the text is not found as it stands: ever less strictly."""


@dataclass(frozen=True)
class FileChange:
    """A file before and after; None where it does not exist."""

    path: str
    before: str | None
    after: str | None


def replace_text(text: str, old: str, new: str, *, everywhere: bool) -> str:
    """``text`` with ``old`` replaced: as it stands, else line by line with white space forgiven.

    Raises: ToolFailure where ``old`` is absent, or stands more than once and not ``everywhere``.
    """
    if not old:
        raise ToolFailure("old_string is empty; use write_file for a new file.")
    if old == new:
        raise ToolFailure("old_string and new_string are the same.")
    found = text.count(old)
    if found > 1 and not everywhere:
        raise ToolFailure(f"old_string stands {found} times; add lines around it, or set replace_all.")
    if found:
        return text.replace(old, new)
    lines = text.splitlines(keepends=True)
    spots = _find_lines(lines, old.splitlines())
    if not spots:
        raise ToolFailure("old_string was not found; read the file again and copy it exactly.")
    if len(spots) > 1 and not everywhere:
        raise ToolFailure(f"old_string stands {len(spots)} times; add lines around it, or set replace_all.")
    return _replace_lines(lines, spots, len(old.splitlines()), new)


def _find_lines(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where the wanted lines begin (without overlap), under the strictest comparison that finds any."""
    for normal in _FORGIVING:
        have, want = [normal(line) for line in lines], [normal(line) for line in wanted]
        spots: list[int] = []
        free = 0
        for start, line in enumerate(have):
            if start >= free and line == want[0] and have[start : start + len(want)] == want:
                spots.append(start)
                free = start + len(want)
        if spots and any(want):
            return spots
    return []


def _replace_lines(lines: list[str], spots: list[int], count: int, new: str) -> str:
    result = list(lines)
    for start in reversed(spots):
        replaced = result[start : start + count]
        ending = "\n" if replaced[-1].endswith("\n") and new and not new.endswith("\n") else ""
        result[start : start + count] = [new + ending]
    return "".join(result)


@dataclass
class PatchEdit:
    """What a patch does to one file."""

    path: str
    kind: str
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def adds(self) -> bool:
        return self.kind == "Add"

    def change(self, before: str | None) -> FileChange:
        """The change of a file that now holds ``before``. Raises: ToolFailure where a hunk does not fit."""
        if self.kind == "Delete":
            return FileChange(self.path, before, None)
        if before is None:
            added = "".join(f"{line}\n" for hunk in self.hunks for line in hunk.new)
            return FileChange(self.path, None, added)
        lines, at = before.splitlines(), 0
        for hunk in self.hunks:
            lines, at = hunk.apply(lines, at, self.path)
        ending = "\n" if lines and (before.endswith("\n") or not before) else ""
        return FileChange(self.path, before, "\n".join(lines) + ending)


@dataclass
class Hunk:
    """Lines that stand in the file, and the lines that replace them."""

    anchor: str = ""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def apply(self, lines: list[str], start: int, path: str) -> tuple[list[str], int]:
        """The changed lines, and where the next hunk is looked for."""
        if self.anchor:
            anchored = [i for i, line in enumerate(lines) if i >= start and line.strip() == self.anchor]
            start = anchored[0] + 1 if anchored else start
        if not self.old:
            spot = start if self.anchor else len(lines)
        else:
            spots = _find_lines(lines[start:], self.old) or [s - start for s in _find_lines(lines, self.old)]
            if not spots:
                raise ToolFailure(f"{path}: these lines were not found:\n" + "\n".join(self.old[:5]))
            spot = start + spots[0]
        end = spot + len(self.old)
        return lines[:spot] + self.new + lines[end:], spot + len(self.new)


def parse_patch(text: str) -> list[PatchEdit]:
    """The edits of a V4A text. Raises: ToolFailure where it is not one."""
    edits: list[PatchEdit] = []
    for line in text.strip("\n").splitlines():
        if line.startswith(("*** Begin Patch", "*** End")):
            continue
        if line.startswith("*** "):
            edits.append(_header(line))
        elif not edits:
            raise ToolFailure("A patch begins with `*** Begin Patch` and `*** Update File: PATH`.")
        else:
            _add_line(edits[-1], line)
    if not edits:
        raise ToolFailure("The patch changes no file.")
    paths = [edit.path for edit in edits]
    if len(set(paths)) != len(paths):
        raise ToolFailure("The patch names a file twice; put its hunks under one header.")
    return edits


def _header(line: str) -> PatchEdit:
    for kind in ("Update", "Add", "Delete"):
        prefix = f"*** {kind} File:"
        if line.startswith(prefix) and line[len(prefix) :].strip():
            return PatchEdit(path=line[len(prefix) :].strip(), kind=kind)
    raise ToolFailure(f"Unknown patch header {line!r}; known are Update File, Add File, Delete File.")


def _add_line(edit: PatchEdit, line: str) -> None:
    if line.startswith("@@"):
        edit.hunks.append(Hunk(anchor=line.strip("@ ").strip()))
        return
    if not edit.hunks:
        edit.hunks.append(Hunk())
    hunk, sign, rest = edit.hunks[-1], line[:1], line[1:]
    if sign not in {"+", "-", " ", ""}:
        raise ToolFailure(f"A patch line begins with '+', '-' or a space, not {line!r}.")
    if sign != "+":
        hunk.old.append(rest)
    if sign != "-":
        hunk.new.append(rest)
