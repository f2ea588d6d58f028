"""Plays one rollout: a conversation against the engine, in a box of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from atroposlib.envs.server_handling.capture_session import CaptureSession
from atroposlib.envs.server_handling.server_manager import EngineFacts, ServerManager
from atroposlib.errors import ConfigError, RolloutInvalid
from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.agent_loop.result import Message
from environments.hermes_config import HermesAgentEnvConfig
from environments.rollouts.endpoint import open_endpoint
from environments.rollouts.grading import fresh_context
from environments.rollouts.program import run_program
from environments.rollouts.samples import certify, check_sequences
from environments.tool_context import ToolContext
from environments.tools.workspaces import Workspace, WorkspaceScope

OfferedTools = tuple[list[dict[str, Any]], set[str]]
"""Schemas for the model, and the names it may call."""
Split = Literal["train", "eval"]
Messages = list[Message]


@dataclass(frozen=True)
class Rollout:
    """A conversation that was played to its end; the box of its verifier is open."""

    rollout_id: str
    result: AgentResult
    ctx: ToolContext


class RolloutPlayer:
    """Plays rollouts of one environment.

    ``facts`` says what the engine is. ``tokenizer`` loads it, off the event loop, and only where the engine tells
    its tokens.
    """

    def __init__(
        self,
        config: HermesAgentEnvConfig,
        server: ServerManager,
        facts: Callable[[], Awaitable[EngineFacts]],
        tokenizer: Callable[[], Any],
    ) -> None:
        self.config = config
        self.server = server
        self._facts = facts
        self._load_tokenizer = tokenizer
        self._loading = asyncio.Lock()

    async def play(
        self, messages: Messages, tools: OfferedTools, scope: WorkspaceScope, split: Split, trainer_limit: int = -1
    ) -> Rollout:
        """Converse from ``messages`` to the end. ``trainer_limit``: tokens that the trainer takes; -1: no limit.

        The box stays open, and belongs to ``scope``. Raises: RolloutInvalid where the engine or the box failed, or
        where nothing of a rollout to train on was sampled.
        """
        workspace = scope.bind(str(uuid.uuid4()), scope.plan)
        try:
            if self.config.agent_command is None:
                result = await self._converse(messages, tools, workspace.task_id, split, trainer_limit)
            else:
                result = await self._run_program(self.config.agent_command, messages, workspace, split, trainer_limit)
            _check(result)
            if split == "train" and result.managed_state is not None:
                check_sequences(result)  # a member that fails here is tried again; after the grade none is
            ctx = await self._context(scope, workspace)
        except BaseException:
            await workspace.close()
            raise
        return Rollout(workspace.task_id, result, ctx)

    async def _converse(
        self, messages: Messages, tools: OfferedTools, task_id: str, split: Split, trainer_limit: int
    ) -> AgentResult:
        config = self.config
        schemas, names = tools
        async with self._engine(trainer_limit) as (server, limit):
            loop = HermesAgentLoop(
                server=server,
                tool_schemas=schemas,
                valid_tool_names=names,
                max_turns=config.max_agent_turns,
                task_id=task_id,
                temperature=config.eval_temperature if split == "eval" else config.agent_temperature,
                max_tokens=config.max_token_length,
                extra_body=config.extra_body,
                budget_config=config.build_budget_config(),
                max_rollout_tokens=limit,
                tool_call_parser=config.tool_call_parser,
                split=split,
            )
            result = await loop.run(messages)
            if result.managed_state is not None:
                certify(server, result)
            return result

    async def _run_program(
        self, command: str, messages: Messages, workspace: Workspace, split: Split, trainer_limit: int
    ) -> AgentResult:
        config, facts = self.config, await self._facts()
        if not facts.token_exact:
            raise ConfigError(f"--env.agent_command needs an engine that tells its tokens: {facts.reason}")
        tokenizer = await self._tokenizer()
        managed = await self.server.open_rollout(
            tokenizer,
            preserve_think_blocks=config.thinking_mode,
            tool_call_parser=config.tool_call_parser,
            max_rollout_tokens=self._limit(trainer_limit, facts.max_model_len),
        )
        temperature = config.eval_temperature if split == "eval" else config.agent_temperature
        session = CaptureSession(
            managed,
            config.tool_call_parser,
            base_url=None,
            expires_after_s=2.0 * config.agent_timeout,
            defaults={
                "temperature": temperature,
                "max_tokens": config.max_token_length,
                "extra_body": config.extra_body,
                "split": split,
            },
            most_requests=config.max_agent_turns,
        )
        async with open_endpoint(self.server, tokenizer, facts.model_name, session) as endpoint:
            result = await run_program(command, messages, workspace, endpoint, config.agent_timeout)
            certify(managed, result)
        return result

    async def _tokenizer(self) -> Any:
        async with self._loading:
            return await asyncio.to_thread(self._load_tokenizer)

    @asynccontextmanager
    async def _engine(self, trainer_limit: int) -> AsyncIterator[tuple[Any, int | None]]:
        """The engine of one rollout, and the token limit that the loop has to keep.

        An engine that tells its tokens is recorded, token by token; the record then keeps the limit itself.
        """
        facts = await self._facts()
        limit = self._limit(trainer_limit, facts.max_model_len)
        if not facts.token_exact:
            yield self.server, limit
            return
        async with self.server.managed_server(
            tokenizer=await self._tokenizer(),
            preserve_think_blocks=self.config.thinking_mode,
            tool_call_parser=self.config.tool_call_parser,
        ) as managed:
            managed.max_rollout_tokens = limit
            yield managed, None

    def _limit(self, trainer_limit: int, engine_limit: int | None) -> int | None:
        """Tokens of a rollout: as configured, else the smaller of the trainer's and the engine's limit."""
        configured: Sequence[int | None] = (self.config.max_rollout_tokens,)
        limits = configured if configured[0] is not None else (trainer_limit, engine_limit)
        return min((limit for limit in limits if limit is not None and limit > 0), default=None)

    async def _context(self, scope: WorkspaceScope, workspace: Workspace) -> ToolContext:
        if self.config.grade_in == "fresh":
            return await fresh_context(scope, workspace, self.config.artefacts)
        return ToolContext(workspace.task_id)


def _check(result: AgentResult) -> None:
    if result.invalid_reason is not None:
        raise RolloutInvalid(result.invalid_reason, result.error or "")
