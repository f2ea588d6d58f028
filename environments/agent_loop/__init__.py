"""The conversation of an agent with its tools."""

from environments.agent_loop.loop import HermesAgentLoop
from environments.agent_loop.result import AgentResult, StopReason, ToolError

__all__ = ["AgentResult", "HermesAgentLoop", "StopReason", "ToolError"]
