"""A verifier's hands in the box of a rollout."""

from environments.tool_context.bridge import BridgeError, bridged, bridged_method, run_from_sync
from environments.tool_context.context import ToolContext

__all__ = ["BridgeError", "ToolContext", "bridged", "bridged_method", "run_from_sync"]
