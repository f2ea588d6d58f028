"""code_exec: code of completions, tested in a box."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import pytest

from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.code_exec.extraction import Block, blocks, code_in
from atroposlib.envs.reward_fns.scoring import score
from atroposlib.errors import ConfigError, RewardError
from environments.tool_context import ToolContext
from sandboxes import check_backend
from sandboxes.errors import SandboxUnavailable

ADD = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\n"
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"
ECHO = "```python\nprint(int(input()) + int(input()))\n```"


@pytest.fixture(params=["local", pytest.param("bubblewrap", marks=pytest.mark.namespaces)])
async def ctx(request: pytest.FixtureRequest) -> AsyncIterator[ToolContext]:
    try:
        check_backend(request.param)
    except SandboxUnavailable as reason:
        pytest.skip(str(reason))
    async with ToolContext.open(request.param) as opened:
        yield opened


@pytest.mark.parametrize(
    ("completion", "tests", "value"),
    [
        (ADD, "assert add(1, 2) == 3", 1.0),
        (ADD, "assert add(1, 2) == 4", 0.0),
        (ADD, ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], 1.0),
        (WRONG, "assert add(1, 2) == 3", 0.0),
        (ECHO, [{"input": "1\n2\n", "output": "3"}, {"input": [3, 4], "output": 7}], 1.0),
        (ECHO, [{"input": "1\n2\n", "output": "4"}], 0.0),
        (ECHO, {"inputs": ["1\n2"], "outputs": ["3\n"]}, 1.0),
        (ECHO, '[{"input": "1\\n2", "output": "3"}]', 1.0),
        ("no code here, sorry", "assert True", 0.0),
        ("```python\n```", "assert True", 0.0),
        ("```python\nimport sys\nsys.exit(0)\n```", "assert False", 0.0),
        ("```python\nimport os\nos._exit(0)\n```", "assert False", 0.0),
        ("```python\nprint('noise')\n```", [{"input": "", "output": "3"}], 0.0),
        (
            "```python\nimport sys\nprint('3')\nprint('noise', file=sys.stderr)\n```",
            [{"input": "", "output": "3"}],
            1.0,
        ),
        ("```python\nprint('3')\nraise SystemExit(1)\n```", [{"input": "", "output": "3"}], 0.0),
    ],
)
async def test_code_is_worth_what_its_tests_say(ctx, completion, tests, value):
    assert await registry.create("code_exec").acall([completion], solution=[tests], ctx=ctx) == [value]


async def test_code_that_takes_too_long_has_failed(ctx):
    reward = registry.create({"type": "code_exec", "timeout_s": 1})
    [verdict] = await reward.averdicts(["```python\nwhile True: pass\n```"], solution="assert True", ctx=ctx)
    assert (verdict, verdict.why) == (0.0, "0 of the first 1 tests passed; test 1: it took longer than 1 s")


async def test_nothing_is_left_lying_about(ctx):
    reward = registry.create("code_exec")
    await reward.acall([ADD], solution="assert add(1, 2) == 3", ctx=ctx)
    await reward.acall([ECHO], solution=[[{"input": "1\n2", "output": "3"}]], ctx=ctx)
    hasty = registry.create({"type": "code_exec", "timeout_s": 0.5})
    await hasty.acall(["```python\nwhile 'mine': pass\n```"], solution="assert True", ctx=ctx)
    broken = registry.create({"type": "code_exec", "footer": "{{ unknown }}"})
    with pytest.raises(RewardError, match="'unknown' is undefined"):
        await broken.acall([ADD], solution="assert True", item={}, ctx=ctx)
    assert (await ctx.aterminal('ls -A . "${TMPDIR:-/tmp}"'))["output"].split() == [".:", ANY]


async def test_what_the_agent_left_does_not_decide(ctx):
    await ctx.awrite_file("math.py", "raise SystemExit(0)")
    code = "```python\nimport math\nprint(math.floor(3.5))\n```"
    assert await registry.create("code_exec").acall([code], solution=[[{"input": "", "output": "3"}]], ctx=ctx) == [1.0]


# --- without a box of its own ---


class FakeBox:
    """Answers every program with what it was told to."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self.results = list(results)
        self.commands: list[str] = []
        self.files: dict[str, str] = {}

    async def aterminal(self, command: str, timeout: float = 180) -> dict[str, Any]:
        if command.startswith(("mktemp", "rm")):
            return printed("/tmp/made")
        self.commands.append(command)
        return self.results.pop(0)

    async def awrite_file(self, path: str, content: str | bytes) -> dict[str, Any]:
        self.files[path.rpartition("/")[2]] = str(content)
        return {"bytes_written": len(content)}


def printed(output: str, exit_code: int = 0) -> dict[str, Any]:
    return {"output": output, "exit_code": exit_code, "error": None}


async def test_a_share_of_the_tests_counts_where_it_is_wanted():
    tests = [{"input": str(i), "output": str(i)} for i in range(4)]
    box = FakeBox(printed("0"), printed("9"), printed("", 1), printed("3 \n"))
    [verdict] = await registry.create({"type": "code_exec", "partial": True}).averdicts(
        [ECHO], solution=[tests], ctx=box
    )
    assert (verdict, verdict.why) == (0.5, "2 of 4 tests passed; test 2: printed “9” ≠ “1” (truth)")
    box = FakeBox(printed("0"), printed("9"))
    assert await registry.create("code_exec").acall([ECHO], solution=[tests], ctx=box) == [0.0]
    assert len(box.commands) == 2


async def test_header_and_footer_make_an_item_of_humaneval_whole():
    reward = registry.create({"type": "code_exec", "header": "{{ prompt }}", "footer": "check({{ entry_point }})"})
    item = {"prompt": "def add(a, b):\n", "entry_point": "add"}
    box = FakeBox(printed("", 1))
    await reward.acall(["```\n    return a + b\n```"], solution="def check(f): assert f(1, 2) == 3", item=item, ctx=box)
    program = box.files["program"]
    assert program.startswith(
        "def add(a, b):\n    return a + b\n\ndef check(f): assert f(1, 2) == 3\ncheck(add)\nprint("
    )
    with pytest.raises(RewardError, match="'entry_point' is undefined"):
        await reward.acall([ADD], solution="x", item={"prompt": ""}, ctx=FakeBox())


async def test_each_completion_is_tested_in_the_box_of_its_own_rollout():
    first, second = FakeBox(printed("3")), FakeBox(printed("4"))
    tests = [{"input": "", "output": "3"}]
    scores = await score("code_exec", [ECHO, ECHO], solution=[tests, tests], ctx=[first, second])
    assert scores.rewards == [1.0, 0.0]


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ([], "needs tests"),
        (5, "needs tests"),
        ([{"input": "1"}], "needs 'input' and 'output'"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        (["assert True"] * 101, "more than max_tests"),
    ],
)
async def test_an_item_without_proper_tests_is_an_error(tests, complaint):
    with pytest.raises(RewardError, match=complaint):
        await registry.create("code_exec").acall([ADD], solution=[tests], ctx=FakeBox())


async def test_a_box_that_cannot_be_used_is_an_error_and_no_score():
    with pytest.raises(RewardError, match="it needs ctx"):
        await registry.create("code_exec").acall([ADD], solution="assert True")
    broken = FakeBox()
    with pytest.raises(RewardError, match="code_exec failed: IndexError"):
        await registry.create("code_exec").acall([ADD], solution="assert True", ctx=broken)
    with pytest.raises(ConfigError, match="timeout_s"):
        registry.create({"type": "code_exec", "timeout_s": 0})
    with pytest.raises(RewardError, match="tests of cobol need input and output"):
        await registry.create({"type": "code_exec", "language": "cobol"}).acall(
            [ADD.replace("python", "cobol")], solution="x", ctx=broken
        )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\na\n```", [Block("python", "a\n")]),
        ("```py title=x\na\n```\n~~~\nb\n~~~", [Block("python", "a\n"), Block("", "b\n")]),
        ("````\n```\na\n```\n````", [Block("", "```\na\n```\n")]),
        ("```python\ncut off", [Block("python", "cut off")]),
        ("`a`", []),
    ],
)
def test_fenced_blocks_are_found(text, found):
    assert blocks(text) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\n```python\nb\n```\n```text\nc\n```", "b\n"),
        ("```\na\n```\n```text\nc\n```", "a\n"),
        ("```text\nc\n```", None),
        ("print(1)", "print(1)"),
        ("<think>```python\na\n```</think>\n```python\nb\n```", "b\n"),
        ("<think>```python\na\n```</think>", None),
        ("", None),
    ],
)
def test_the_code_of_a_completion_is_its_last_block(text, code):
    assert code_in(text, "python") == code
