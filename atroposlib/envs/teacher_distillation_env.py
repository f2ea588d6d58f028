"""Environments whose groups carry a teacher's opinion of every token.

With ``--env.teacher_enabled true`` and a teacher engine (``--teacher.base_url``), each group that is sent holds
``distill_token_ids`` and ``distill_logprobs``, both [sequence][position][k], one position per token of the sequence.
The teacher must have the vocabulary of the policy: it is asked with the policy's own ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.groups import as_groups
from atroposlib.envs.server_handling.completions import together
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerBaseline, ServerManager
from atroposlib.errors import ConfigError, RolloutInvalid
from atroposlib.type_definitions import Item
from atroposlib.wire import ScoredDataGroup

TeacherServers = ServerBaseline | APIServerConfig | Sequence[APIServerConfig]
Alternatives = tuple[list[list[int]], list[list[float]]]
"""Ids and logprobs, [position][k]."""


class TeacherDistillationConfig(BaseEnvConfig):
    """Settings of an environment with a teacher."""

    teacher_enabled: bool = Field(False, description="Ask the teacher about every sequence.")
    teacher_top_k: int = Field(
        0, ge=-1, description="Best tokens per position; 0: only the token that stands there; -1: ask nothing."
    )


class TeacherDistillationEnv(BaseEnv):
    """A ``BaseEnv`` with a second engine, ``self.teacher_server`` (None where there is no teacher)."""

    env_config_cls = TeacherDistillationConfig
    teacher_namespace: ClassVar[str] = "teacher"

    def __init__(
        self,
        config: TeacherDistillationConfig,
        server_configs: Any,
        slurm: bool = False,
        testing: bool = False,
        teacher_server_configs: TeacherServers | None = None,
    ) -> None:
        super().__init__(config, server_configs, slurm, testing)
        self.teacher_server: ServerManager | None = None
        if config.teacher_enabled and config.teacher_top_k >= 0:
            servers = teacher_server_configs or self.teacher_config_init()
            if not servers:
                raise ConfigError(f"teacher_enabled needs a teacher: set --{self.teacher_namespace}.base_url")
            self.teacher_server = ServerManager(servers)

    @classmethod
    def teacher_config_init(cls) -> TeacherServers | None:
        """The teacher this environment starts from; flags go over it."""
        return None

    @classmethod
    def extra_settings(cls) -> Mapping[str, BaseModel]:
        """The flags ``--teacher.…``; they describe one engine."""
        servers = cls.teacher_config_init()
        first = servers if isinstance(servers, BaseModel) or not servers else servers[0]
        return {cls.teacher_namespace: first if isinstance(first, APIServerConfig) else APIServerConfig()}

    @classmethod
    def from_settings(
        cls, config: BaseEnvConfig, servers: Any, slurm: bool, testing: bool, extra: Mapping[str, BaseModel]
    ) -> BaseEnv:
        """Build the environment with the teacher that the command line describes, or its own."""
        env: Callable[..., BaseEnv] = cls
        teacher = extra[cls.teacher_namespace]
        if isinstance(teacher, APIServerConfig) and teacher.base_url:
            return env(config, servers, slurm, testing, teacher_server_configs=[teacher])
        return env(config, servers, slurm, testing)

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Add the teacher's opinion to each group that has none, then send.

        Raises: InferenceError, RolloutInvalid (``teacher_mismatch``): a group without its opinion is not sent.
        """
        if self.teacher_server is not None:
            await together(self._add_opinion(self.teacher_server, group) for group in as_groups(scored_data))
        await super().handle_send_to_api(scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)

    async def aclose(self) -> None:
        """Close the teacher's connections too."""
        if self.teacher_server is not None:
            await self.teacher_server.close()
        await super().aclose()

    async def _add_opinion(self, teacher: ServerManager, group: ScoredDataGroup) -> None:
        if group.get("distill_token_ids") is not None:
            return
        opinions = await together(self._opinion(teacher, tokens) for tokens in group["tokens"])
        group["distill_token_ids"] = [ids for ids, _ in opinions]
        group["distill_logprobs"] = [logprobs for _, logprobs in opinions]

    async def _opinion(self, teacher: ServerManager, tokens: Sequence[int]) -> Alternatives:
        answer = await teacher.get_logprobs(input_ids=list(tokens), top_k=self.config.teacher_top_k, split="train")
        ids, logprobs = answer["prompt_topk_token_ids"], answer["prompt_topk_logprobs"]
        if list(answer["prompt_tokens"]) != list(tokens) or len(ids) != len(tokens) or len(logprobs) != len(tokens):
            raise RolloutInvalid(
                "teacher_mismatch", f"asked about {len(tokens)} tokens, the teacher answered for {len(ids)} others"
            )
        return [list(each) for each in ids], [list(each) for each in logprobs]
