"""An unmodified mini-swe-agent as ``--env.agent_command``: it runs in the rollout's box and is recorded token by token.

Its box is a Debian in which it is installed, made for this test and removed after it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from atroposlib.cli import check_tokens
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from environments.hermes_base_env import HermesAgentBaseEnv
from sandboxes import ImageBuildError, ImageNotFound, SandboxUnavailable
from sandboxes.images import BOOKWORM, RECIPES, build_root, export_image
from tests.environments.agent_engine import make_tokenizer, save_tokenizer
from tests.environments.conftest import require

pytestmark = [pytest.mark.agents, pytest.mark.namespaces, pytest.mark.timeout(900)]

REQUIREMENTS = Path(__file__).parent / "mini_swe_agent" / "requirements.txt"
PYTHON = "3.11"
"""Of the boxes' Debian."""
INSTALLED = "/opt/mini-swe-agent"
COMMAND = (
    f"PYTHONPATH={INSTALLED} MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True "
    'python3 -m minisweagent --model "openai/$AGENT_MODEL" --task "$AGENT_PROMPT" --yolo --exit-immediately '
    "--output /tmp/trajectory.json"
)
BROKEN = "def add(a, b):\n    return a - b\n"
SOLUTION = (
    "cat sums.py",
    "sed -i 's/a - b/a + b/' sums.py",
    "python3 -c 'import sums; print(sums.add(2, 3))'",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
ITEM = {"file": "sums.py"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory):
    """A Debian that holds mini-swe-agent and all that it needs, at the versions of ``REQUIREMENTS``."""
    require("bubblewrap")
    folder = tmp_path_factory.mktemp("debian") / "root"
    try:
        try:
            export_image(BOOKWORM, folder)
        except (ImageNotFound, SandboxUnavailable):
            build_root(RECIPES["bookworm"], folder, print)
    except ImageBuildError as error:
        pytest.skip(f"no Debian for the box: {error}")
    target = folder / INSTALLED.lstrip("/")
    options = ["-qq", "--no-deps", "--only-binary=:all:", f"--python-version={PYTHON}", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *options, f"--target={target}", "-r", REQUIREMENTS]
    try:
        subprocess.run(install, check=True, timeout=800)
        yield folder
    finally:
        shutil.rmtree(folder)


class MendingEnv(HermesAgentBaseEnv):
    """The reward is whether a function that was wrong is right."""

    root: Path

    async def get_next_item(self):
        return ITEM

    def format_prompt(self, item):
        return f"The function add in {item['file']} does not add. Mend it."

    def sandbox_spec(self, item):
        return replace(super().sandbox_spec(item), root=self.root)

    async def prepare_box(self, item, ctx):
        ctx.write_file(item["file"], BROKEN)

    async def compute_reward(self, item, result, ctx):
        self.result = result
        told = ctx.terminal("python3 -c 'import sums; print(sums.add(20, 22))'")
        return 1.0 if told["output"].strip() == "42" else 0.0


def by_turn(request):
    """The next command of the solution, with a thought before it, as the model of this conversation."""
    command = SOLUTION[request.text.count("<|im_start|>assistant") - 1]
    return {"content": f"Next: {command}", "tool_calls": [{"name": "bash", "arguments": {"command": command}}]}


async def test_it_solves_a_task_and_every_token_of_it_is_recorded(root: Path, tmp_path: Path):
    engine = ScriptedServer(by_turn, tokenizer=make_tokenizer())
    settings = {"terminal_backend": "bubblewrap", "sandbox_memory_mb": 2048, "group_size": 2, "use_wandb": False}
    env = MendingEnv(
        MendingEnv.env_config_cls(agent_command=COMMAND, agent_timeout=300, **settings), [engine], testing=True
    )
    env.root, env.tokenizer = root, engine.tokenizer
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0], env.result.error
    certificates = [told["certificate"] for told in group["overrides"]]
    assert [(each["turns"], each["forks"]) for each in certificates] == [(len(SOLUTION), 0)] * 2
    assert env.result.stop_reason == "finished"
    for tokens, masks in zip(group["tokens"], group["masks"], strict=True):
        said = env.tokenizer.decode([number for number in masks if number != -100])
        calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in SOLUTION]
        assert all(call in said for call in calls)
        assert '"output": "5\\n"' in env.tokenizer.decode(tokens)
        assert '"output": "5\\n"' not in said
    recorded = tmp_path / "groups.jsonl"
    recorded.write_bytes(orjson.dumps(group) + b"\n")
    assert check_tokens.main([str(recorded), "--tokenizer", str(save_tokenizer(tmp_path / "tokenizer"))]) == 0
