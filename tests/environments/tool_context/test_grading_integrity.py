"""What an agent leaves lying about does not decide its reward."""

import uuid

import pytest

from environments.hermes_config import CLEAN_GRADING
from environments.tool_context import ToolContext
from environments.tools import ToolCallContext, tools
from environments.tools.registry import run_tool
from environments.tools.workspaces import BoxPlan, workspace_of, workspace_scope
from sandboxes.base import SandboxSpec
from tests.environments.conftest import require

FAILING_TEST = "import solution\n\ndef test_it():\n    assert solution.f() == 42\n"
WRONG_SOLUTION = "echo 'def f(): return 0' > solution.py; "

TRICKS = {
    "a conftest that passes everything": (
        "cat > conftest.py <<'E'\nimport pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n"
        "    return True\nE"
    ),
    "an ini file that only collects": "printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini",
    "a pyproject that only collects": "printf '[tool.pytest.ini_options]\\naddopts = \"--co\"\\n' > pyproject.toml",
    "a pytest of its own on the path": (
        "mkdir -p ~/.local/bin bin; printf '#!/bin/sh\\nexit 0\\n' | tee bin/pytest > ~/.local/bin/pytest; "
        "chmod +x bin/pytest ~/.local/bin/pytest; export PATH=$PWD/bin:$PATH; alias pytest=true; "
        "hash -p $PWD/bin/pytest pytest"
    ),
    "start-up files and variables": (
        "echo 'exit 0' | tee ~/.bashrc ~/.profile ~/.bash_profile > rc; "
        "export BASH_ENV=$PWD/rc ENV=$PWD/rc PYTEST_ADDOPTS=--co PYTHONSTARTUP=$PWD/rc"
    ),
    "a user site with customisation": (
        "d=$(python3 -m site --user-site); mkdir -p $d; "
        "echo 'import os; os._exit(0)' | tee $d/usercustomize.py > $d/sitecustomize.py"
    ),
    "a test file written beforehand and rewritten all the time": (
        "(while true; do echo 'def test_it(): pass' > test_hidden.py; done) > /dev/null 2>&1 &"
    ),
    "a setsid process that escapes its session": (
        "setsid sh -c 'while true; do echo \"def test_it(): pass\" > test_hidden.py; done' > /dev/null 2>&1 &"
    ),
    "a link where the test will stand": (
        "ln -s /workspace/elsewhere.py test_hidden.py; echo 'def test_it(): pass' > elsewhere.py"
    ),
}


@pytest.mark.docker
@pytest.mark.parametrize("trick", TRICKS)
async def test_a_trick_does_not_make_a_failing_test_pass(trick):
    plan = BoxPlan(require("docker"), SandboxSpec(), grading_env=CLEAN_GRADING)
    async with workspace_scope(plan) as scope:
        workspace = scope.bind(str(uuid.uuid4()), plan)
        workspace.agent_acts()
        call = ToolCallContext(workspace_of(workspace.task_id))
        await run_tool(tools()["terminal"], call, {"command": WRONG_SOLUTION + TRICKS[trick]})
        ctx = ToolContext(workspace.task_id)
        await ctx.awrite_file("/workspace/test_hidden.py", FAILING_TEST)
        result = await ctx.aterminal("pytest -q /workspace/test_hidden.py")
        assert result["exit_code"] == 1, result["output"]
        await ctx.awrite_file("/workspace/solution.py", "def f(): return 42\n")
        assert (await ctx.aterminal("pytest -q /workspace/test_hidden.py"))["exit_code"] == 0
