"""The settings of environments whose agents use tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from atroposlib.envs.config import BaseEnvConfig, warn_once
from atroposlib.tool_call_parsers import list_parsers
from environments.tools.results import BudgetConfig
from sandboxes.allow_list import Host
from sandboxes.base import Network, SandboxSpec

UnevenGroups = Literal["all", "longest", "exact"]

CLEAN_GRADING = {
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "--noconftest -c /dev/null --rootdir . -p no:cacheprovider",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
"""What keeps files that an agent left lying about out of a verifier's Python, pytest and git.

An environment whose own tests need a ``conftest.py`` or a ``pytest.ini`` sets ``grading_env`` without that line.
"""


class HermesAgentEnvConfig(BaseEnvConfig):
    """Settings of ``HermesAgentBaseEnv``; an environment adds its own as fields, and they become flags."""

    without_effect: ClassVar[Mapping[str, str]] = {"tool_pool_size": "tools need no pool of threads"}

    enabled_toolsets: list[str] | None = Field(None, description="Toolsets offered to the agent; None: every tool.")
    disabled_toolsets: list[str] | None = Field(None, description="Toolsets taken away again.")
    distribution: str | None = Field(
        None, description="Distribution that toolsets are drawn from, for each group anew; excludes enabled_toolsets."
    )
    max_agent_turns: int = Field(30, ge=1, description="Replies of the model in one rollout.")
    system_prompt: str | None = Field(None, description="System message of every rollout.")
    agent_temperature: float = Field(1.0, ge=0, description="Sampling temperature of training rollouts.")
    tool_call_parser: str = Field("hermes", description="Format of tool calls that the engine leaves in the text.")
    extra_body: dict[str, Any] | None = Field(None, description="More keys for every request to the engine.")
    uneven_groups: UnevenGroups = Field(
        "all",
        description="Groups that forks make larger than group_size, and failures smaller. all: every sequence is sent; "
        "longest: of each rollout the one with the most sampled tokens; exact: the same, and a group in which a "
        "rollout failed is left out, so that every group has group_size sequences.",
    )

    agent_command: str | None = Field(
        None,
        description="Shell command that is the agent, in place of the loop; it finds its model by OPENAI_BASE_URL.",
    )
    agent_timeout: int = Field(1800, ge=1, description="Seconds that agent_command may run.")

    terminal_backend: str = Field("docker", description="Where tools run: docker, bubblewrap, local or auto.")
    docker_image: str | None = Field(None, description="Image of the boxes; an item's docker_image goes before it.")
    docker_build: str | None = Field(
        None,
        description="Folder with a Dockerfile that the boxes' image is built from, once for each content, in place of "
        "docker_image; an item's docker_build goes before both.",
    )
    terminal_timeout: int = Field(120, ge=1, description="Seconds a command may run where the model names no time.")
    terminal_lifetime: int = Field(3600, ge=1, description="Seconds a rollout may keep its box.")
    warm_boxes: int = Field(
        0,
        ge=0,
        description="Boxes that stand ready, for each of the last 8 kinds in use. A container holds about 5 MB of "
        "memory, a bubblewrap box 1 MB. 0: a box starts when it is needed.",
    )
    max_boxes_starting: int = Field(4, ge=1, description="Boxes that start at once; others wait.")
    sandbox_cpus: float = Field(1.0, gt=0, description="Cores of a box.")
    sandbox_memory_mb: int = Field(1024, ge=64, description="Memory of a box, in MiB.")
    sandbox_pids: int = Field(256, ge=8, description="Processes of a box.")
    sandbox_disk_mb: int = Field(512, ge=16, description="Writable space of a box, in MiB.")
    sandbox_network: Network | list[str] = Field(
        "none", description="Network of a box: none, bridge, or the only hosts it reaches (HOST, *.HOST, HOST:PORT)."
    )
    grade_in: Literal["same", "fresh"] = Field(
        "same", description="Box of the verifier: the agent's, or a fresh one that gets only the artefacts."
    )
    artefacts: list[str] = Field(["/workspace"], description="What is copied to a fresh box for grading.")
    grading_env: dict[str, str] = Field(CLEAN_GRADING, description="Variables of the verifier's commands.")

    dataset_name: str | None = Field(None, description="Dataset, for environments that load one.")
    dataset_split: str = Field("train", description="Its split.")
    prompt_field: str = Field("prompt", description="Its field that holds the prompt.")

    eval_size: int | None = Field(100, ge=1, description="Items of an evaluation; None: all held-out items.")
    eval_temperature: float = Field(0.0, ge=0, description="Sampling temperature of evaluations.")
    judge_base_url: str | None = Field(None, description="Engine that judges answers; None: the policy's own.")
    judge_model_name: str | None = Field(None, description="Model of the judge.")
    judge_api_key_env: str | None = Field(None, description="Environment variable that holds the judge's API key.")

    default_result_size_chars: int = Field(100_000, ge=1, description="Longest result of a tool that is shown whole.")
    turn_budget_chars: int = Field(200_000, ge=1, description="Longest results of one turn together.")
    preview_size_chars: int = Field(1_500, ge=0, description="How much is shown of a result that is too long.")
    tool_result_overrides: dict[str, int] | None = Field(None, description="Longest result by name of the tool.")
    tool_pool_size: int = Field(128, description="Accepted for old configurations; has no effect.")

    @model_validator(mode="after")
    def _one_source_of_tools(self) -> Self:
        if self.distribution is not None and self.enabled_toolsets is not None:
            raise ValueError(
                "distribution and enabled_toolsets exclude each other: leave one out by --env.enabled_toolsets None or "
                "--env.distribution None"
            )
        return self

    @model_validator(mode="after")
    def _one_source_of_the_image(self) -> Self:
        if self.docker_image is not None and self.docker_build is not None:
            raise ValueError(
                "docker_image and docker_build exclude each other: leave one out by --env.docker_image None or "
                "--env.docker_build None"
            )
        return self

    @model_validator(mode="after")
    def _thinking_prompt_needs_its_mode(self) -> Self:
        if self.custom_thinking_prompt and not self.thinking_mode:
            warn_once("--env.custom_thinking_prompt has no effect without --env.thinking_mode")
        return self

    @field_validator("sandbox_network", mode="before")
    @classmethod
    def _network_or_hosts(cls, value: Any) -> Any:
        """A command line gives ``none`` as a list of one word."""
        if not isinstance(value, list | tuple):
            return value
        if list(value) in (["none"], ["bridge"]):
            return value[0]
        if not value or any(host in ("none", "bridge", "host") for host in value):
            raise ValueError("write none, or bridge, or the names of the only hosts that a box may reach")
        for host in value:
            Host.parse(str(host))
        return list(value)

    @field_validator("tool_call_parser")
    @classmethod
    def _known_parser(cls, name: str) -> str:
        if name not in list_parsers():
            raise ValueError(f"unknown tool_call_parser {name!r}; known are {', '.join(list_parsers())}")
        return name

    def system_message(self, prompt: str | None) -> list[dict[str, str]]:
        """The messages that a conversation begins with: ``prompt``, after that of the thinking mode; none for none."""
        thinking = self.custom_thinking_prompt if self.thinking_mode else None
        text = "\n\n".join(part for part in (thinking, prompt) if part)
        return [{"role": "system", "content": text}] if text else []

    def build_budget_config(self) -> BudgetConfig:
        """How much of the tools' results reaches the model."""
        return BudgetConfig(
            default_result_size=self.default_result_size_chars,
            turn_budget=self.turn_budget_chars,
            preview_size=self.preview_size_chars,
            tool_overrides=dict(self.tool_result_overrides or {}),
        )

    def sandbox_spec(
        self, image: str | None = None, labels: Mapping[str, str] | None = None, build: str | None = None
    ) -> SandboxSpec:
        """The box that these settings describe, with an image, or a folder to build one from, where one is given."""
        if not image and not build:
            image, build = self.docker_image, self.docker_build
        network = self.sandbox_network
        return SandboxSpec(
            image=image or None,
            build=Path(build) if build else None,
            cpus=self.sandbox_cpus,
            memory_mb=self.sandbox_memory_mb,
            pids=self.sandbox_pids,
            disk_mb=self.sandbox_disk_mb,
            network=tuple(network) if isinstance(network, list) else network,
            labels=dict(labels or {}),
        )
