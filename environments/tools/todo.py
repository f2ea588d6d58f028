"""``todo``: the agent's own list of what is left to do; it needs no box."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from environments.tools.base import Arguments, Tool, parameters

if TYPE_CHECKING:
    from environments.tools.base import ToolCallContext

STATUSES = ("pending", "in_progress", "completed", "cancelled")
LONGEST_LIST = 200


class TodoList:
    """Entries in order, one per id."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, str]] = {}

    def write(self, entries: list[dict[str, Any]], *, merge: bool) -> None:
        """Replace the list, or with ``merge`` update it by id. A status that does not exist counts as pending."""
        kept = dict(self._entries) if merge else {}
        for entry in entries:
            kept[entry["id"]] = {
                "id": entry["id"],
                "content": entry["content"],
                "status": entry["status"] if entry["status"] in STATUSES else "pending",
            }
        self._entries = dict(list(kept.items())[:LONGEST_LIST])

    def describe(self) -> dict[str, Any]:
        """The list with a count per status."""
        entries = list(self._entries.values())
        counts = Counter(entry["status"] for entry in entries)
        return {"todos": entries, "summary": {"total": len(entries)} | {name: counts[name] for name in STATUSES}}


async def run_todo(call: ToolCallContext, arguments: Arguments) -> dict[str, Any]:
    """Write the list where entries are given, and answer with all of it."""
    todos = call.workspace.todos
    if "todos" in arguments:
        todos.write(arguments["todos"], merge=arguments.get("merge", False))
    return todos.describe()


TODO = Tool(
    name="todo",
    description="Read or write your list of tasks.",
    parameters=parameters(
        todos={
            "type": "array",
            "items": parameters(
                ("id", "content", "status"),
                id={"type": "string"},
                content={"type": "string"},
                status={"type": "string", "description": ", ".join(STATUSES)},
            ),
        },
        merge={"type": "boolean", "description": "update by id instead of replacing"},
    ),
    run=run_todo,
    needs_box=False,
)
