"""Every tool in a real box of each backend."""

import asyncio
import json
import uuid

import pytest

from environments.tools import ToolCallContext, ToolFailure, terminal, tools
from environments.tools.registry import run_tool
from environments.tools.terminal import OUTPUT_CHARS


@pytest.fixture
def use(scope):
    workspace = scope.bind(str(uuid.uuid4()), scope.plan)

    async def call(name, **arguments):
        return await run_tool(tools()[name], ToolCallContext(workspace), arguments)

    return call


async def test_the_terminal_answers_with_output_code_and_error(use):
    assert await use("terminal", command="echo hi; echo oops >&2; exit 3") == {
        "output": "hi\noops\n",
        "exit_code": 3,
        "error": None,
    }


async def test_folder_and_exports_persist_between_commands(use):
    await use("terminal", command="mkdir -p a/b && cd a/b && export COLOUR=red")
    result = await use("terminal", command='echo "$COLOUR" "$(basename "$PWD")"')
    assert result["output"] == "red b\n"


async def test_files_and_background_processes_start_where_the_session_is(use):
    await use("terminal", command="mkdir -p a/b && cd a/b")
    await use("write_file", path="here.txt", content="x")
    assert (await use("terminal", command="cat /workspace/a/b/here.txt"))["output"] == "x"
    assert (await use("search_files", pattern="*", target="files"))["total_count"] == 1
    process = (await use("terminal", command="touch made", background=True))["session_id"]
    await use("process", action="wait", session_id=process, timeout=20)
    assert (await use("terminal", command="ls; cd ..; rm -r b"))["output"] == "here.txt\nmade\n"


async def test_workdir_is_for_one_command(use):
    await use("terminal", command="mkdir 'a b'")
    inside = await use("terminal", command='basename "$PWD"  # a comment', workdir="a b")
    assert inside["output"] == "a b\n"
    assert (await use("terminal", command="ls"))["output"] == "a b\n"
    assert (await use("terminal", command="true", workdir="nowhere"))["exit_code"] != 0


async def test_a_command_that_hangs_is_killed_and_the_session_lives_on(use):
    await use("terminal", command="export KEPT=1")
    result = await use("terminal", command="echo started; sleep 60", timeout=1)
    assert result == {"output": "started\n", "exit_code": 124, "error": "timed out after 1 s"}
    assert (await use("terminal", command="echo $KEPT"))["output"] == "1\n"


async def test_a_timeout_beyond_the_limit_is_told(use):
    with pytest.raises(ToolFailure, match="1 to 600 seconds"):
        await use("terminal", command="true", timeout=601)


async def test_long_output_keeps_both_ends_and_the_whole_is_in_a_file(use):
    result = await use("terminal", command="seq 1 20000")
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("19999\n20000\n")
    assert len(result["output"]) < OUTPUT_CHARS + 300
    path = result["output"].split("all of it is in ")[1].split(",")[0]
    page = await use("read_file", path=path, offset=10000, limit=2)
    assert page["content"] == " 10000|10000\n 10001|10001"
    assert page["total_lines"] == 20000


async def test_a_background_process_is_polled_written_to_and_killed(use):
    started = await use("terminal", command="while read line; do echo got $line; done", background=True)
    assert (started["exit_code"], started["error"]) == (0, None)
    process = started["session_id"]
    await use("process", action="submit", session_id=process, data="one")
    for _ in range(200):
        if "got one" in (await use("process", action="poll", session_id=process))["output_preview"]:
            break
        await asyncio.sleep(0.01)
    assert (await use("process", action="log", session_id=process))["output"] == "got one"
    assert [p["status"] for p in (await use("process", action="list"))["processes"]] == ["running"]
    await use("process", action="close", session_id=process)
    assert (await use("process", action="wait", session_id=process, timeout=20))["exit_code"] == 0
    sleeper = (await use("terminal", command="sleep 100", background=True))["session_id"]
    assert (await use("process", action="kill", session_id=sleeper)) == {"status": "killed"}
    assert (await use("process", action="wait", session_id=sleeper, timeout=20))["status"] == "exited"


async def test_a_process_that_reads_nothing_cannot_hold_up_who_writes_to_it(use, monkeypatch):
    monkeypatch.setattr(terminal, "SEND_TIMEOUT_S", 0.3)
    process = (await use("terminal", command="sleep 100", background=True))["session_id"]
    with pytest.raises(ToolFailure, match="did not read all of its input within"):
        await use("process", action="write", session_id=process, data="x" * 2_000_000)
    assert (await use("process", action="kill", session_id=process)) == {"status": "killed"}


async def test_a_process_of_another_box_is_not_found(use):
    assert (await use("process", action="poll", session_id="proc_999"))["status"] == "not_found"
    with pytest.raises(ToolFailure, match="needs a session_id"):
        await use("process", action="poll")


async def test_files_are_written_read_and_patched(use):
    assert await use("write_file", path="src/a.py", content="x = 1\ny = 2\n") == {"bytes_written": 12}
    read = await use("read_file", path="/workspace/src/a.py")
    assert read == {"content": "     1|x = 1\n     2|y = 2", "total_lines": 2, "file_size": 12, "truncated": False}
    patched = await use("patch", path="src/a.py", old_string="y = 2", new_string="y = 3")
    assert patched["files_modified"] == ["src/a.py"]
    assert "-y = 2\n+y = 3\n" in patched["diff"]
    assert (await use("terminal", command="cat src/a.py"))["output"] == "x = 1\ny = 3\n"


async def test_a_patch_text_changes_several_files_or_none(use):
    await use("write_file", path="a", content="1\n")
    await use("write_file", path="b", content="2\n")
    text = "*** Begin Patch\n*** Update File: a\n-1\n+one\n*** Add File: c\n+three\n*** Delete File: b\n*** End Patch"
    result = await use("patch", mode="patch", patch=text)
    assert (result["files_modified"], result["files_created"], result["files_deleted"]) == (["a"], ["c"], ["b"])
    assert (await use("terminal", command="cat a c; ls"))["output"] == "one\nthree\na\nc\n"
    with pytest.raises(ToolFailure, match="not found"):
        await use("patch", mode="patch", patch="*** Update File: a\n-one\n+1\n*** Update File: c\n-nothing\n+x")
    assert (await use("terminal", command="cat a"))["output"] == "one\n"


async def test_home_is_the_home_of_the_boxes_user(use):
    await use("terminal", command="echo hi > ~/greeting.txt")
    assert (await use("read_file", path="~/greeting.txt"))["content"] == "     1|hi"


@pytest.mark.parametrize("path", ["nowhere", ".", "a/../../../etc/../nowhere"])
async def test_a_file_that_cannot_be_read_is_told(use, path):
    with pytest.raises(ToolFailure):
        await use("read_file", path=path)


async def test_a_binary_file_is_not_shown(use):
    await use("terminal", command="printf 'a\\0b' > blob")
    with pytest.raises(ToolFailure, match="binary"):
        await use("read_file", path="blob")


async def test_contents_are_searched_in_order(use):
    await use("write_file", path="b.txt", content="needle 2\nother\n")
    await use("write_file", path="a:1:b.txt", content="other\nneedle 1\n")
    await use("write_file", path="a.md", content="needle 3\n")
    found = await use("search_files", pattern="need.e", file_glob="*.txt")
    assert [(m["path"].rsplit("/", 1)[1], m["line"], m["content"]) for m in found["matches"]] == [
        ("a:1:b.txt", 2, "needle 1"),
        ("b.txt", 1, "needle 2"),
    ]
    assert found["total_count"] == 2
    limited = await use("search_files", pattern="needle", limit=1)
    assert limited["truncated"]
    assert "offset=1" in limited["hint"]
    json.dumps(limited)


async def test_names_are_searched_and_counted(use):
    for name in ("x.py", "sub/y.py", "z.txt"):
        await use("write_file", path=name, content="import os\nimport sys\n")
    found = await use("search_files", pattern="*.py", target="files")
    assert [path.rsplit("/", 1)[1] for path in found["files"]] == ["y.py", "x.py"]
    counts = await use("search_files", pattern="^import", output_mode="count", path="sub")
    assert [entry["count"] for entry in counts["counts"]] == [2]
    assert len((await use("search_files", pattern="import", output_mode="files_only"))["files"]) == 3


async def test_context_lines_are_marked(use):
    await use("write_file", path="f", content="a\nb\nc\n")
    found = await use("search_files", pattern="b", context=1)
    assert [(m["content"], m.get("context", False)) for m in found["matches"]] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]


HOSTILE = [
    "-rf",
    "$(touch owned)",
    "`touch owned`",
    "; touch owned",
    "a\nb",
    "--include=*",
    "'",
    '"',
    "../x",
    " ",
    "-e",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_nothing_a_model_writes_into_a_path_or_pattern_is_run(use, text):
    for name, arguments in (
        ("search_files", {"pattern": text}),
        ("search_files", {"pattern": "x", "path": text}),
        ("search_files", {"pattern": text, "target": "files"}),
        ("search_files", {"pattern": "x", "file_glob": text}),
        ("read_file", {"path": text}),
        ("terminal", {"command": "true", "workdir": text}),
        ("patch", {"mode": "patch", "patch": f"*** Add File: {text}\n+x"}),
    ):
        try:
            await use(name, **arguments)
        except ToolFailure:
            continue
    assert "owned" not in (await use("terminal", command="cd /workspace; find . -name owned"))["output"]


async def test_an_invalid_expression_is_told(use):
    with pytest.raises(ToolFailure):
        await use("search_files", pattern="(")
