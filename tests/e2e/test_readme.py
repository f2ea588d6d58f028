"""The environment in the README, typed in as a file and run by the first command beside it."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.e2e.programs import ENVIRONMENT, REPOSITORY, environment, make_folder, run
from tests.environments.agent_engine import AgentEngine, serving_in_a_thread
from tests.environments.conftest import require

WORK = "printf 'def add(a, b):\\n    return a + b\\n' > add.py"
BOXES = ("--env.tokenizer_name", "tokenizer", "--env.terminal_backend")


@pytest.mark.namespaces
def test_the_environment_of_the_readme_judges_what_the_agent_wrote(tmp_path):
    text = (REPOSITORY / "README.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (source,) = [block for language, block in blocks if language == "python"]
    folder = make_folder(tmp_path / "work")
    (folder / ENVIRONMENT).write_text(source)
    shown = [block for language, block in blocks if language == "bash" and "my_env.py process" in block]
    command = shown[0].replace("\\\n", " ").splitlines()[0]
    engine = AgentEngine()
    engine.command = WORK
    with serving_in_a_thread(engine) as url:
        words = shlex.split(command.replace("URL", url).replace("NAME", "stub"), comments=True)
        assert words[:2] == ["python", ENVIRONMENT]
        ended = run(environment(*words[2:], *BOXES, require("bubblewrap"), "--env.total_steps", "2"), folder)
    assert ended.returncode == 0, ended.stderr
    groups = [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]
    assert [group["scores"] for group in groups] == [[1.0], [1.0]]
