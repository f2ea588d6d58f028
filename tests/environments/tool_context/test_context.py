"""A verifier's hands in the agent's box, on every backend."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from environments.tool_context import BridgeError, ToolContext, bridged
from environments.tools import ToolCallContext, ToolFailure, tools
from environments.tools.registry import run_tool
from environments.tools.workspaces import BoxPlan, WorkspaceClosed, WorkspaceError, workspace_of, workspace_scope
from sandboxes.base import SandboxSpec


@pytest.fixture
def ctx(scope):
    return ToolContext(scope.bind(str(uuid.uuid4()), scope.plan).task_id)


async def agent_runs(ctx, command):
    """What the agent's own terminal tool would do."""
    workspace = workspace_of(ctx.task_id)
    workspace.agent_acts()
    return await run_tool(tools()["terminal"], ToolCallContext(workspace), {"command": command})


async def test_the_terminal_always_answers_with_all_three_keys(ctx):
    assert await ctx.aterminal("echo out; echo err >&2; exit 7") == {
        "output": "out\nerr\n",
        "exit_code": 7,
        "error": None,
    }
    assert await ctx.aterminal("sleep 60", timeout=1) == {
        "output": "",
        "exit_code": 124,
        "error": "timed out after 1 s",
    }
    assert (await ctx.aterminal("true", timeout=100_000))["exit_code"] == 0


async def test_plain_calls_work_in_a_bridged_function(ctx):
    async def compute_reward():
        ctx.write_file("sub/a.txt", "one\ntwo\n")
        return ctx.terminal("cat /workspace/sub/a.txt")["output"], ctx.read_file("sub/a.txt")["content"]

    assert await bridged(compute_reward) == ("one\ntwo\n", "one\ntwo\n")


async def test_a_plain_call_in_an_ordinary_task_is_refused(ctx):
    with pytest.raises(BridgeError, match="aterminal"):
        ctx.terminal("true")


async def test_plain_calls_work_in_threads_with_and_without_context(ctx):
    await ctx.aterminal("echo hi > f")
    assert (await asyncio.to_thread(ctx.read_file, "f"))["content"] == "hi\n"
    with ThreadPoolExecutor(1) as pool:
        fresh = await asyncio.wrap_future(pool.submit(lambda: ToolContext(ctx.task_id).terminal("cat f")))
    assert fresh["output"] == "hi\n"


async def test_the_agents_session_processes_and_variables_do_not_reach_the_verifier(ctx):
    await agent_runs(
        ctx,
        "mkdir -p bin; printf '#!/bin/sh\\necho fake\\n' > bin/cat; chmod +x bin/cat; export PATH=$PWD/bin:$PATH; "
        "echo 'echo sourced' > rc; export BASH_ENV=$PWD/rc ENV=$PWD/rc PYTHONPATH=$PWD; alias cat='echo x'; cd bin; "
        "(while true; do echo forged > /workspace/answer; sleep 0.01; done) > /dev/null 2>&1 & true",
    )
    assert (await agent_runs(ctx, "cat x"))["output"] != ""
    await ctx.awrite_file("answer", "true\n")
    await asyncio.sleep(0.05)
    result = await ctx.aterminal('cat answer; echo "$PYTHONPATH|$BASH_ENV"; basename "$PWD"')
    folder = os.path.basename((await ctx.aterminal("cd /workspace; pwd"))["output"].strip())
    assert result["output"] == f"true\n|\n{folder}\n"


async def test_variables_of_the_grading_are_set(backend):
    plan = BoxPlan(backend, SandboxSpec(), grading_env={"PYTEST_ADDOPTS": "--noconftest"})
    async with workspace_scope(plan), ToolContext(str(uuid.uuid4())) as ctx:
        assert (await ctx.aterminal("echo $PYTEST_ADDOPTS"))["output"] == "--noconftest\n"


async def test_a_file_is_read_raw_and_whole(ctx):
    text = "".join(f"{n}\n" for n in range(3000)) + "last line without newline"
    await ctx.awrite_file("long.txt", text)
    read = await ctx.aread_file("long.txt")
    assert read == {
        "content": text,
        "total_lines": 3001,
        "file_size": len(text),
        "truncated": False,
    }
    assert await ctx.aread_file("long.txt") == read


async def test_a_file_that_is_not_there_is_an_answer_with_every_key(ctx):
    read = await ctx.aread_file("nowhere.txt")
    assert (read["content"], read["total_lines"], read["file_size"]) == ("", 0, 0)
    assert "nowhere.txt" in read["error"] or "No such file" in read["error"]


@pytest.mark.parametrize("name", ["plain", "with space", "semi;colon", "-dash", "quote'\"", "new\nline", "ü"])
async def test_files_go_in_and_out_byte_for_byte(ctx, tmp_path, name):
    data = os.urandom(150_001)
    (tmp_path / "in").write_bytes(data)
    up = await ctx.aupload_file(tmp_path / "in", f"/workspace/{name}")
    assert (up["success"], up["bytes"], up["exit_code"]) == (True, len(data), 0)
    down = await ctx.adownload_file(f"/workspace/{name}", tmp_path / "deep" / "out")
    assert (down["success"], down["bytes"]) == (True, len(data))
    assert (tmp_path / "deep" / "out").read_bytes() == data


async def test_an_empty_file_is_a_file(ctx, tmp_path):
    (tmp_path / "empty").touch()
    assert (await ctx.aupload_file(tmp_path / "empty", "e"))["success"]
    assert await ctx.adownload_file("e", tmp_path / "back") == {"success": True, "bytes": 0, "path": "/workspace/e"}


async def test_trees_go_in_and_out_with_modes_and_links(ctx, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "sub" / "link").symlink_to("../run.sh")
    up = await ctx.aupload_dir(tree, "/workspace/there")
    assert [report["path"] for report in up] == ["/workspace/there/run.sh", "/workspace/there/sub/link"]
    assert (await ctx.aterminal("./there/run.sh; ls -d there/sub/empty"))["output"] == "ran\nthere/sub/empty\n"
    down = await ctx.adownload_dir("there", tmp_path / "back")
    assert all(report["success"] for report in down)
    assert (tmp_path / "back" / "sub" / "link").read_text() == (tree / "run.sh").read_text()


async def test_what_the_agent_did_not_make_is_an_answer_and_what_is_missing_here_is_raised(ctx, tmp_path):
    assert (await ctx.adownload_file("nowhere", tmp_path / "x"))["success"] is False
    assert [r["success"] for r in await ctx.adownload_dir("nowhere", tmp_path / "y")] == [False]
    with pytest.raises(FileNotFoundError):
        await ctx.aupload_file(tmp_path / "not there", "x")
    with pytest.raises(NotADirectoryError):
        await ctx.aupload_dir(tmp_path / "not there", "x")


async def test_search_finds_many_matches_without_cutting(ctx):
    await ctx.awrite_file("f", "needle\n" * 300)
    found = await ctx.asearch("needle")
    assert found["total_count"] == len(found["matches"]) == 300
    assert (await ctx.asearch("("))["error"]


async def test_any_tool_may_be_called(ctx):
    assert json.loads(await ctx.acall_tool("terminal", {"command": "echo hi"}))["output"] == "hi\n"
    assert "Unknown tool" in json.loads(await ctx.acall_tool("nothing", {}))["error"]
    assert json.loads(await ctx.acall_tool("todo"))["todos"] == []


async def test_a_tool_that_is_not_registered_is_no_empty_answer(ctx):
    with pytest.raises(ToolFailure, match="register_tool"):
        await ctx.aweb_search("x")
    with pytest.raises(ToolFailure, match="register_tool"):
        await ctx.aweb_extract(["x"])


async def test_cleanup_closes_for_good(ctx):
    await ctx.aterminal("true")
    await bridged(ctx.cleanup)
    await ctx.acleanup()
    with pytest.raises(WorkspaceClosed):
        await ctx.aterminal("true")
    with pytest.raises(WorkspaceClosed):
        await ToolContext(ctx.task_id).aterminal("true")


async def test_outside_an_environment_the_error_says_what_to_write():
    with pytest.raises(WorkspaceError, match=r"ToolContext\.open"):
        await ToolContext("nobody").aterminal("true")


PROGRAM = """
import sys
from environments.tool_context import ToolContext
with ToolContext.open(sys.argv[1]) as ctx:
    ctx.write_file("a.txt", "hello")
    print(ctx.terminal("cat a.txt")["output"], ctx.read_file("a.txt")["file_size"])
left_open = ToolContext.open(sys.argv[1])
print(left_open.terminal("echo $HERMES_WORKSPACE")["output"])
"""


def test_a_plain_program_works_without_an_event_loop(backend):
    command = [sys.executable, "-c", PROGRAM, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, folder, _ = done.stdout.split("\n", 2)
    assert first == "hello 5"
    assert not folder or not os.path.exists(folder), "a box that was left open is closed at the end of the program"
