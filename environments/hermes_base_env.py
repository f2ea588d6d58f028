"""``HermesAgentBaseEnv``: an environment whose agents use tools in a sandbox of their own (skeleton of the hooks)."""

from __future__ import annotations

from typing import Any

from environments.tool_context import ToolContext


class HermesAgentBaseEnv:
    """Subclasses implement ``setup``, ``get_next_item``, ``format_prompt`` and ``compute_reward``."""

    async def prepare_box(self, item: Any, ctx: ToolContext) -> None:
        """Put into the fresh box what the agent starts from; override it where an item needs files.

        Called once per rollout, when its box opens: before the agent's first command, or before the first call of the
        verifier where the agent ran none. Synchronous ``ctx`` calls are fine here. What is written here can be read
        by the agent; what must stay hidden is written in ``compute_reward``.
        """
