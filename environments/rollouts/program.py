"""An agent that is a program of its own: it runs in the rollout's box and reaches nothing but its model.

The program finds its model as OpenAI's clients do, by ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``; its name is
``AGENT_MODEL``. What it has to do stands on its standard input and, where it is not too long, in ``AGENT_PROMPT``;
``AGENT_SYSTEM_PROMPT`` is the environment's system prompt. Its calls are recorded token by token. What it prints is
its own matter; its exit status decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atroposlib.envs.server_handling.capture_session import CaptureSession, NoTurnsLeft
from atroposlib.envs.server_handling.chat_rendering import text_of
from atroposlib.errors import ContextFull, RolloutInvalid
from environments.agent_loop import AgentResult
from environments.agent_loop.result import Message, StopReason, Timings, Usage
from environments.rollouts.endpoint import Endpoint
from environments.tools.workspaces import Workspace, WorkspaceError
from sandboxes.errors import IMAGE_FAULTS, SandboxError
from sandboxes.relay import open_relay

if TYPE_CHECKING:
    from sandboxes.base import ExecResult

LONGEST_VARIABLE = 100_000
"""Bytes that a variable may hold; the kernel takes none much longer."""
KEPT_OUTPUT = 20_000
SHOWN_OUTPUT = 500


@dataclass(frozen=True)
class Ending:
    """Why a program ended, and what is to be said about it. ``refusal``: why a record was refused, if that ended it."""

    reason: StopReason
    error: str | None = None
    refusal: str | None = None


async def run_program(
    command: str, messages: Sequence[Message], workspace: Workspace, endpoint: Endpoint, timeout_s: float
) -> AgentResult:
    """Run the agent to its end or for ``timeout_s`` seconds. An engine or a box that fails ends it: ``stop_reason``.

    Raises: ImageNotFound, ImageBuildError, which no other rollout can do better about; RolloutInvalid where the prompt
    is not text.
    """
    started = time.monotonic()
    prompt, told = _prompt(messages), _told(messages)
    try:
        box = await workspace.box()
        workspace.agent_acts()
        async with open_relay(box, endpoint.connect) as port:
            variables = {**endpoint.environment(port), **told}
            ended = await box.exec(
                command,
                env=variables,
                stdin=prompt.encode(),
                timeout_s=timeout_s,
                output_limit=KEPT_OUTPUT,
                merge_stderr=True,
            )
    except IMAGE_FAULTS:
        raise
    except (SandboxError, WorkspaceError) as error:
        ending = Ending(StopReason.SANDBOX_ERROR, f"{type(error).__name__}: {error}")
    else:
        ending = _ending(endpoint.session, ended, timeout_s)
    return _result(endpoint.session, messages, ending, time.monotonic() - started)


def _prompt(messages: Sequence[Message]) -> str:
    return _encodable(text_of(messages[-1], len(messages) - 1))


def _told(messages: Sequence[Message]) -> dict[str, str]:
    texts = [text_of(message, index) for index, message in enumerate(messages) if message.get("role") == "system"]
    told = {"AGENT_PROMPT": _prompt(messages), "AGENT_SYSTEM_PROMPT": _encodable("\n\n".join(filter(None, texts)))}
    return {name: text for name, text in told.items() if "\0" not in text and len(text.encode()) <= LONGEST_VARIABLE}


def _encodable(text: str) -> str:
    """The text with ``?`` for halves of surrogate pairs, which no UTF-8 holds."""
    return text.encode("utf-8", "replace").decode()


def _ending(session: CaptureSession, ended: ExecResult, timeout_s: float) -> Ending:
    """Why it ended: what failed at the engine goes before what the program made of it."""
    failures = list(session.failures.values())
    own_ends = (ContextFull, NoTurnsLeft)
    broken = next((error for error in failures if not isinstance(error, own_ends)), None)
    if isinstance(broken, RolloutInvalid):
        return Ending(StopReason.ENGINE_ERROR, broken.detail, broken.reason)
    if broken is not None:
        return Ending(StopReason.ENGINE_ERROR, f"{type(broken).__name__}: {broken}")
    if not session.managed.current_nodes and not failures:
        said = ended.output[-SHOWN_OUTPUT:].strip()
        return Ending(
            StopReason.NOTHING_ASKED,
            f"agent_command asked its model nothing; it ended with {ended.exit_code}: {said or 'no output'}",
        )
    if any(isinstance(error, ContextFull) for error in failures):
        return Ending(StopReason.CONTEXT_FULL)
    if failures:
        return Ending(StopReason.MAX_TURNS)
    if ended.timed_out:
        return Ending(StopReason.MAX_TURNS, f"agent_command did not end within {timeout_s:g} s")
    if ended.exit_code:
        return Ending(
            StopReason.FINISHED,
            f"agent_command ended with {ended.exit_code}: {ended.output[-SHOWN_OUTPUT:].strip()}",
        )
    return Ending(StopReason.FINISHED)


def _result(session: CaptureSession, messages: Sequence[Message], ending: Ending, seconds: float) -> AgentResult:
    state = session.managed.get_state()
    sampled = sum((node.metadata or {}).get("sampled_tokens", 0) for node in state["nodes"])
    return AgentResult(
        messages=session.conversation or list(messages),
        managed_state=state,
        turns_used=session.requests,
        finished_naturally=ending.reason is StopReason.FINISHED,
        stop_reason=ending.reason,
        error=ending.error,
        refusal=ending.refusal,
        usage=Usage(requests=session.requests, completion_tokens=sampled),
        timings=Timings(total_s=seconds),
    )
