"""``terminal`` and ``process``: the shell session of a task, and its background processes."""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import TYPE_CHECKING, Any

from environments.tools.base import Arguments, Tool, ToolCallContext, ToolFailure, parameters
from environments.tools.results import save_text

if TYPE_CHECKING:
    from sandboxes.base import ExecResult, ProcessStatus, Sandbox

LONGEST_TIMEOUT_S = 600
SEND_TIMEOUT_S = 30.0
OUTPUT_CHARS = 50_000
KEPT_BYTES = 1_000_000
"""How much of a command's output the box keeps (its head and its tail)."""


async def run_terminal(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Run a command in the task's shell session: ``{"output", "exit_code", "error"}``."""
    command: str = arguments["command"]
    folder: str | None = arguments.get("workdir")
    if arguments.get("background"):
        return await _start(call, command, folder)
    timeout_s = _timeout_s(arguments, call.workspace.plan.command_timeout_s)
    shell = await call.workspace.shell()
    result = await shell.run(_in_folder(command, folder), timeout_s=timeout_s, output_limit=KEPT_BYTES)
    return {
        "output": await _bounded_output(call, result),
        "exit_code": result.exit_code,
        "error": f"timed out after {timeout_s:g} s" if result.timed_out else None,
    }


def _timeout_s(arguments: Arguments, default_s: float) -> float:
    """Raises: ToolFailure for a time no command may take."""
    timeout_s = float(arguments.get("timeout", default_s))
    longest_s = max(LONGEST_TIMEOUT_S, default_s)
    if not 0 < timeout_s <= longest_s:
        raise ToolFailure(f"timeout must be 1 to {longest_s:g} seconds; run longer work in the background.")
    return timeout_s


async def _start(call: ToolCallContext, command: str, folder: str | None) -> dict[str, Any]:
    box = await call.workspace.box()
    process_id = await box.start(command, cwd=await call.workspace.resolve(folder or "."))
    return {"output": "Background process started", "session_id": process_id, "exit_code": 0, "error": None}


def _in_folder(command: str, folder: str | None) -> str:
    """The command, run in ``folder`` without moving the session there."""
    if folder is None:
        return command
    return f"(cd -- {shlex.quote(folder)} && {{\n{command}\n}})"


async def _bounded_output(call: ToolCallContext, result: ExecResult) -> str:
    text = result.output
    if result.omitted_bytes:
        text += f"\n... [{result.omitted_bytes} bytes from the middle of the output were not kept] ..."
    if len(text) <= OUTPUT_CHARS:
        return text
    path = await save_text(call.workspace, text, "terminal")
    return cut_middle(text, OUTPUT_CHARS, f"; all of it is in {path}, read it with read_file" if path else "")


def cut_middle(text: str, limit: int, note: str = "") -> str:
    """The first 40 % and the last 60 % of ``limit`` characters, with a line between that says what is missing."""
    head, tail = limit * 2 // 5, limit - limit * 2 // 5
    omitted = len(text) - limit
    mark = f"\n\n... [OUTPUT TRUNCATED - {omitted} chars omitted out of {len(text)} total{note}] ...\n\n"
    return text[:head] + mark + text[-tail:]


async def run_process(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """One action on a background process of this task's box."""
    box = await call.workspace.box()
    action: str = arguments["action"]
    if action == "list":
        return {"processes": [_describe(status) for status in await box.processes()]}
    process_id = arguments.get("session_id")
    if not process_id:
        raise ToolFailure(f"Action {action!r} needs a session_id.")
    try:
        return await _act(box, action, process_id, arguments)
    except KeyError:
        return {"status": "not_found", "error": f"No process {process_id!r} in this box."}


async def _act(box: Sandbox, action: str, process_id: str, arguments: Arguments) -> dict[str, Any]:
    if action == "poll":
        return _describe(await box.poll(process_id))
    if action == "log":
        return _log(await box.poll(process_id), arguments.get("offset"), max(1, arguments.get("limit", 200)))
    if action == "wait":
        return await _wait(box, process_id, _timeout_s(arguments, 60.0))
    if action == "kill":
        await box.kill(process_id)
        return {"status": "killed"}
    data: str = arguments.get("data", "")
    text = {"write": data, "submit": data + "\n", "close": ""}[action]
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await box.send(process_id, text.encode(), eof=action == "close")
    except TimeoutError:
        raise ToolFailure(f"The process did not read all of its input within {SEND_TIMEOUT_S:g} seconds.") from None
    return {"status": "closed" if action == "close" else "ok", "bytes_written": len(text.encode())}


def _describe(status: ProcessStatus) -> dict[str, Any]:
    described: dict[str, Any] = {
        "session_id": status.process_id,
        "command": status.command,
        "status": "running" if status.exit_code is None else "exited",
        "output_preview": _text(status)[-1000:],
    }
    return described if status.exit_code is None else described | {"exit_code": status.exit_code}


def _log(status: ProcessStatus, offset: int | None, limit: int) -> dict[str, Any]:
    """Lines ``offset`` … (0-based); without an offset the last ``limit``."""
    lines = _text(status).splitlines()
    first = max(0, len(lines) - limit if offset is None else offset)
    shown = lines[first : first + limit]
    return {"output": "\n".join(shown), "total_lines": len(lines), "showing": f"{first + 1}-{first + len(shown)}"}


async def _wait(box: Sandbox, process_id: str, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.02
    while (status := await box.poll(process_id)).exit_code is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return {"status": "timeout", "output": _text(status)[-2000:]}
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, 1.0)
    return {"status": "exited", "exit_code": status.exit_code, "output": _text(status)[-2000:]}


def _text(status: ProcessStatus) -> str:
    return status.output.decode("utf-8", errors="replace")


TERMINAL = Tool(
    name="terminal",
    description="Run a shell command. Folder and exports persist.",
    parameters=parameters(
        ("command",),
        command={"type": "string"},
        timeout={"type": "integer", "description": "seconds"},
        background={"type": "boolean"},
        workdir={"type": "string"},
    ),
    run=run_terminal,
    text_field="output",
)

PROCESS = Tool(
    name="process",
    description="Control a background process.",
    parameters=parameters(
        ("action",),
        action={"type": "string", "enum": ["list", "poll", "log", "wait", "kill", "write", "submit", "close"]},
        session_id={"type": "string"},
        data={"type": "string"},
        timeout={"type": "integer", "description": "seconds"},
        offset={"type": "integer"},
        limit={"type": "integer"},
    ),
    run=run_process,
    text_field="output",
)
