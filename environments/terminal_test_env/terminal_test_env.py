"""Agents answer questions about small files, and change them, in a real shell: a tool environment from end to end.

    python -m environments.terminal_test_env.terminal_test_env serve --openai.base_url http://localhost:9001/v1

Rewards: 1.0 for the right answer after a command (of an edit: for the right files and any answer); 0.5 where the last
command printed the right thing, or the files are right, and the answer is not; 0.1 for a command and an answer in the
right form; else 0. What is right is found out in the agent's box from files that the agent never saw: a pristine copy
in a folder that is made when the agent is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from environments.agent_loop import AgentResult
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.terminal_test_env.tasks import SYSTEM_PROMPT, Task, make_tasks
from environments.tool_context import ToolContext

FULL, RIGHT_BUT_UNSAID, WELL_FORMED = 1.0, 0.5, 0.1
TRAIN_TASKS, HELD_OUT_TASKS = 4000, 200
HELD_OUT_SEED = 0  # every run is measured on the same tasks


class TerminalTestEnv(HermesAgentBaseEnv):
    """Hundreds of generated tasks; no combination of template parameters that is evaluated is ever trained on."""

    name = "terminal-test"

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        """Settings under which the tiny policy learns on two cores in a few minutes."""
        config = HermesAgentEnvConfig(
            system_prompt=SYSTEM_PROMPT,
            enabled_toolsets=["shell"],
            max_agent_turns=3,
            max_token_length=64,
            group_size=8,
            terminal_timeout=10,
            eval_size=HELD_OUT_TASKS,
            steps_per_eval=0,
        )
        return config, [APIServerConfig(base_url="http://localhost:9001/v1")]

    async def setup(self) -> None:
        self.items = make_tasks(TRAIN_TASKS, seed=self.config.seed, split="train")
        self.eval_items = make_tasks(HELD_OUT_TASKS, seed=HELD_OUT_SEED, split="held_out")

    async def get_next_item(self) -> Task:
        item = self.items[self._index % len(self.items)]
        self._index += 1
        return item

    def format_prompt(self, item: Task) -> str:
        return item["prompt"]

    async def prepare_box(self, item: Task, ctx: ToolContext) -> None:
        """The files of the task, in the working folder."""
        for name, text in item["files"].items():
            ctx.write_file(name, text)

    async def compute_reward(self, item: Task, result: AgentResult, ctx: ToolContext) -> float:
        answer, printed = final_answer(result), last_output(result.messages)
        well_formed = answer is not None and printed is not None
        pristine = printed_by(ctx, "mktemp -d").strip()
        for name, text in item["files"].items():
            ctx.write_file(f"{pristine}/{name}", text)
        reference = printed_by(ctx, f"cd {pristine} && {item['solution']}").strip()
        if item["kind"] == "edit":
            right = ctx.terminal(f"diff -r {pristine} .")["exit_code"] == 0
            solved = right and well_formed
        else:
            right = printed is not None and printed.strip() == reference
            solved = well_formed and answer == reference
        return FULL if solved else RIGHT_BUT_UNSAID if right else WELL_FORMED if well_formed else 0.0


def printed_by(ctx: ToolContext, command: str) -> str:
    """What a command of the verifier prints. Raises: RuntimeError where it fails, which is no score."""
    ran = ctx.terminal(command)
    if ran["exit_code"] != 0:
        raise RuntimeError(f"{command!r} failed in the box, with exit code {ran['exit_code']}: {ran['output']}")
    return str(ran["output"])


def final_answer(result: AgentResult) -> str | None:
    """What follows ``Answer:`` in the agent's last words, without quotes and full stops around it."""
    _, found, answer = result.final_response.rpartition("Answer:")
    return answer.strip().strip("`'\"*.").strip() if found and result.finished_naturally else None


def last_output(messages: Sequence[dict[str, object]]) -> str | None:
    """What the last command printed; None where the last tool call was none, or was refused."""
    for message in reversed(messages):
        if message["role"] == "tool":
            try:
                answer = json.loads(str(message["content"]))
            except ValueError:  # the result of some other tool
                return None
            return answer.get("output") if isinstance(answer, dict) else None
    return None


if __name__ == "__main__":
    TerminalTestEnv.cli()
