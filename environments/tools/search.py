"""``search_files``: grep for contents and find for names, run in the task's box."""

from __future__ import annotations

import re
from typing import Any

from environments.tools.base import Arguments, Tool, ToolCallContext, ToolFailure, parameters
from environments.tools.workspaces import Workspace

SEARCH_TIMEOUT_S = 60.0
KEPT_BYTES = 1_000_000
LONGEST_LINE_CHARS = 500
_LINE = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)


async def run_search_files(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Matches sorted by path and line, so that the same files always give the same answer."""
    if arguments.get("target", "content") == "files":
        paths, cut = await _find_names(call.workspace, arguments)
        return _page("files", paths, cut, arguments)
    mode = arguments.get("output_mode", "content")
    matches, cut = await _grep(call.workspace, arguments)
    if mode == "content":
        return _page("matches", matches, cut, arguments)
    counts: dict[str, int] = {}
    for match in matches:
        if not match.get("context"):
            counts[match["path"]] = counts.get(match["path"], 0) + 1
    if mode == "files_only":
        return _page("files", list(counts), cut, arguments)
    return _page("counts", [{"path": path, "count": count} for path, count in counts.items()], cut, arguments)


def _page(name: str, entries: list[Any], cut: bool, arguments: Arguments) -> dict[str, Any]:
    offset, limit = max(0, arguments.get("offset", 0)), max(1, arguments.get("limit", 50))
    shown = entries[offset : offset + limit]
    result: dict[str, Any] = {"total_count": len(entries), name: shown}
    if offset + len(shown) < len(entries):
        result |= {"truncated": True, "hint": f"Use offset={offset + len(shown)} for more, or search more narrowly."}
    elif cut:
        result |= {"truncated": True, "hint": "Too much was found to count; search more narrowly."}
    return result


async def _find_names(workspace: Workspace, arguments: Arguments) -> tuple[list[str], bool]:
    folder = await workspace.resolve(arguments.get("path", "."))
    command = ["find", folder, "-type", "f", "-name", arguments["pattern"], "-print0"]
    output, cut = await _run(workspace, command)
    return sorted(path for path in output.split("\0")[: -1 if cut else None] if path), cut


async def _grep(workspace: Workspace, arguments: Arguments) -> tuple[list[dict[str, Any]], bool]:
    target = await workspace.resolve(arguments.get("path", "."))
    command = ["grep", "-rnIEHZ", "-C", str(max(0, arguments.get("context", 0)))]
    if "file_glob" in arguments:
        command.append(f"--include={arguments['file_glob']}")
    output, cut = await _run(workspace, [*command, "-e", arguments["pattern"], "--", target])
    lines = output.splitlines()[: -1 if cut else None]
    matches = [match for line in lines if (match := _parse_line(line)) is not None]
    return sorted(matches, key=lambda match: (match["path"], match["line"])), cut


def _parse_line(line: str) -> dict[str, Any] | None:
    path, separator, rest = line.partition("\0")
    parsed = _LINE.match(rest)
    if not separator or parsed is None:
        return None
    number, sign, content = parsed.groups()
    match: dict[str, Any] = {"path": path, "line": int(number), "content": content[:LONGEST_LINE_CHARS]}
    return match | {"context": True} if sign == "-" else match


async def _run(workspace: Workspace, command: list[str]) -> tuple[str, bool]:
    """The output of a search, and whether some of it is missing."""
    box = await workspace.box()
    result = await box.exec(command, timeout_s=SEARCH_TIMEOUT_S, output_limit=KEPT_BYTES)
    complaint = result.stderr.decode("utf-8", errors="replace").strip()
    # grep and find also complain about single files that they may not read; that is no failure of the search.
    if result.exit_code > 1 and not result.stdout and complaint:
        raise ToolFailure(complaint[:500])
    cut = result.timed_out or result.omitted_bytes > 0
    return result.stdout.decode("utf-8", errors="replace"), cut


SEARCH_FILES = Tool(
    name="search_files",
    description="Search file contents by regular expression, or file names by glob.",
    parameters=parameters(
        ("pattern",),
        pattern={"type": "string"},
        target={"type": "string", "enum": ["content", "files"]},
        path={"type": "string"},
        file_glob={"type": "string"},
        limit={"type": "integer"},
        offset={"type": "integer"},
        output_mode={"type": "string", "enum": ["content", "files_only", "count"]},
        context={"type": "integer"},
    ),
    run=run_search_files,
)
