"""``read_file``, ``write_file`` and ``patch``: files of the task's box, as an agent wants them."""

from __future__ import annotations

import asyncio
import difflib
import posixpath
from collections.abc import Callable
from typing import Any, TypeVar

from environments.tools.base import Arguments, Tool, ToolCallContext, ToolFailure, parameters
from environments.tools.edits import FileChange, parse_patch, replace_text
from environments.tools.workspaces import Workspace
from sandboxes.errors import OutputLimitExceeded, SandboxFileError

_T = TypeVar("_T")

LONGEST_READ_LINES = 2_000
LONGEST_LINE_CHARS = 2_000
LONGEST_DIFFED_LINES = 20_000
LONGEST_READ_CHARS = 100_000
LARGEST_FILE_BYTES = 5_000_000
LARGEST_INLINE_CHARS = 100_000
"""Longer texts are worked on in a thread, so that the event loop goes on."""


async def read_text(workspace: Workspace, path: str) -> str:
    """The text of a file of the box. Raises: ToolFailure where it is absent, binary or too large."""
    data = await _read_bytes(workspace, path)
    if b"\0" in data[:8192]:
        raise ToolFailure(f"{path} is a binary file; look at it with the terminal.")
    return data.decode("utf-8", errors="replace")


async def _read_bytes(workspace: Workspace, path: str) -> bytes:
    box = await workspace.box()
    try:
        return await box.read(await workspace.resolve(path), limit=LARGEST_FILE_BYTES)
    except OutputLimitExceeded as error:
        raise ToolFailure(f"{path} is larger than {LARGEST_FILE_BYTES} bytes; look at parts of it.") from error
    except SandboxFileError as error:
        raise ToolFailure(_reason(error, path)) from error


async def _write_text(workspace: Workspace, path: str, text: str) -> int:
    box = await workspace.box()
    data = text.encode("utf-8", errors="surrogatepass")
    try:
        await box.write(await workspace.resolve(path), data)
    except SandboxFileError as error:
        raise ToolFailure(_reason(error, path)) from error
    return len(data)


def _reason(error: SandboxFileError, path: str) -> str:
    return f"{path}: {error.strerror}" if error.strerror else str(error)


async def _compute(size: int, work: Callable[[], _T]) -> _T:
    return work() if size <= LARGEST_INLINE_CHARS else await asyncio.to_thread(work)


async def run_read_file(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Numbered lines ``offset`` … (1-based) of a text file."""
    text = await read_text(call.workspace, arguments["path"])
    return await _compute(len(text), lambda: _page(text, arguments))


def _page(text: str, arguments: Arguments) -> dict[str, Any]:
    lines = text.splitlines()
    first = max(1, arguments.get("offset", 1))
    last = first - 1 + min(max(1, arguments.get("limit", 500)), LONGEST_READ_LINES)
    content = "\n".join(_numbered(number, line) for number, line in enumerate(lines[first - 1 : last], start=first))
    if len(content) > LONGEST_READ_CHARS:
        raise ToolFailure(f"These lines hold {len(content)} chars; read fewer at a time with offset and limit.")
    result: dict[str, Any] = {"content": content, "total_lines": len(lines), "file_size": len(text.encode())}
    if last < len(lines):
        return result | {"truncated": True, "hint": f"Use offset={last + 1} to go on."}
    return result | {"truncated": False}


def _numbered(number: int, line: str) -> str:
    if len(line) > LONGEST_LINE_CHARS:
        line = f"{line[:LONGEST_LINE_CHARS]}... [{len(line) - LONGEST_LINE_CHARS} chars cut]"
    return f"{number:6d}|{line}"


async def run_write_file(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Write a whole file, making its folders."""
    return {"bytes_written": await _write_text(call.workspace, arguments["path"], arguments["content"])}


async def run_patch(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Edit files: one replacement, or a patch text. Every change is worked out before the first is written."""
    if arguments.get("mode", "replace") == "patch":
        changes = await _patched(call.workspace, _required(arguments, "patch"))
    else:
        changes = [await _replaced(call.workspace, arguments)]
    for change in changes:
        await _apply(call.workspace, change)
    return await _compute(sum(len(change.after or "") for change in changes), lambda: _describe(changes))


async def _replaced(workspace: Workspace, arguments: Arguments) -> FileChange:
    path, old, new = (_required(arguments, name) for name in ("path", "old_string", "new_string"))
    everywhere = arguments.get("replace_all", False)
    before = await read_text(workspace, path)
    after = await _compute(len(before), lambda: replace_text(before, old, new, everywhere=everywhere))
    return FileChange(path=path, before=before, after=after)


async def _patched(workspace: Workspace, text: str) -> list[FileChange]:
    changes = []
    for edit in parse_patch(text):
        before = None if edit.adds else await read_text(workspace, edit.path)
        changes.append(edit.change(before))
    return changes


def _required(arguments: Arguments, name: str) -> str:
    if name not in arguments:
        raise ToolFailure(f"Missing parameter {name!r} for mode {arguments.get('mode', 'replace')!r}.")
    return str(arguments[name])


async def _apply(workspace: Workspace, change: FileChange) -> None:
    if change.after is not None:
        await _write_text(workspace, change.path, change.after)
        return
    box = await workspace.box()
    result = await box.exec(["rm", "--", await workspace.resolve(change.path)], timeout_s=30)
    if result.exit_code != 0:
        raise ToolFailure(result.output.strip())


def _describe(changes: list[FileChange]) -> dict[str, Any]:
    return {
        "success": True,
        "diff": "".join(_diff(change) for change in changes),
        "files_modified": [c.path for c in changes if c.before is not None and c.after is not None],
        "files_created": [c.path for c in changes if c.before is None],
        "files_deleted": [c.path for c in changes if c.after is None],
    }


def _diff(change: FileChange) -> str:
    name = posixpath.normpath(change.path)
    before, after = ((text or "").splitlines(keepends=True) for text in (change.before, change.after))
    if len(before) + len(after) > LONGEST_DIFFED_LINES:
        return f"[{name}: too long for a diff]\n"
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


READ_FILE = Tool(
    name="read_file",
    description="Read a text file, with line numbers.",
    parameters=parameters(
        ("path",),
        path={"type": "string"},
        offset={"type": "integer", "description": "first line, from 1"},
        limit={"type": "integer", "description": "how many lines"},
    ),
    run=run_read_file,
    text_field="content",
    pinned=True,
)

WRITE_FILE = Tool(
    name="write_file",
    description="Write a file.",
    parameters=parameters(("path", "content"), path={"type": "string"}, content={"type": "string"}),
    run=run_write_file,
)

PATCH = Tool(
    name="patch",
    description="Replace text in a file, or apply a patch.",
    parameters=parameters(
        mode={"type": "string", "enum": ["replace", "patch"]},
        path={"type": "string"},
        old_string={"type": "string"},
        new_string={"type": "string"},
        replace_all={"type": "boolean"},
        patch={"type": "string", "description": "*** Begin Patch ... *** End Patch"},
    ),
    run=run_patch,
    text_field="diff",
)
