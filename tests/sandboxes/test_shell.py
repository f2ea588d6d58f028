"""Shell sessions: what lasts from one command to the next, and what no command can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandboxes import Sandbox, SandboxSpec, Shell, open_sandbox
from tests.sandboxes.boxes import BACKENDS, require

WITHOUT_BASH = pytest.param("docker without bash", marks=pytest.mark.docker)


@pytest.fixture(scope="module", params=[*BACKENDS, WITHOUT_BASH])
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    backend = request.param.split()[0]
    image = None if backend == request.param else request.getfixturevalue("busybox_image")
    async with open_sandbox(require(backend), SandboxSpec(image=image)) as box:
        yield box


@pytest.fixture
async def shell(box: Sandbox) -> AsyncIterator[Shell]:
    yield box.shell()
    await box.kill_all()


async def output(shell: Shell, command: str) -> str:
    return (await shell.run(command)).output


async def test_the_folder_and_exported_variables_last(shell: Shell):
    await shell.run("mkdir -p 'a b' && cd 'a b' && export NAME='x  \"y\" $z'\nLOCAL=1")
    assert await output(shell, 'basename "$PWD"; echo "$NAME"; echo "${LOCAL-none}"') == 'a b\nx  "y" $z\nnone\n'


async def test_sessions_do_not_see_each_other(box: Sandbox, shell: Shell):
    other = box.shell()
    await shell.run("cd /tmp; export ONLY=here")
    assert await output(other, 'echo "$PWD ${ONLY-none}"') != await output(shell, 'echo "$PWD ${ONLY-none}"')
    assert (await box.exec("echo ${ONLY-none}")).stdout == b"none\n"


@pytest.mark.parametrize(
    "value",
    ["", " ", "'", '"', "\\", "\\\\'", "a\nb", "$HOME `id` $(id)", "tab\there", "ünï", "*", "-n", "a=b", "\x01\x1b[0m"],
)
async def test_a_variable_keeps_its_exact_value(box: Sandbox, shell: Shell, value: str):
    await box.write("value", value.encode())
    await shell.run('IFS= read -r -d "" VALUE < value; export VALUE')
    for _ in range(2):
        await shell.run(":")
    assert await output(shell, 'printf "%s" "$VALUE"') == value


async def test_a_variable_that_was_unset_stays_unset(shell: Shell):
    assert await output(shell, "export A=1 B=2; unset A; echo ${A-none}") == "none\n"
    assert await output(shell, "unset B; unset HOME; echo ${A-none}") == "none\n"
    assert await output(shell, "echo ${A-none} ${B-none} ${HOME-none}") == "none none none\n"


async def test_leaving_the_shell_keeps_what_it_did(shell: Shell):
    result = await shell.run("export A=1; cd /tmp; exit 3")
    assert result.exit_code == 3
    assert await output(shell, "echo $A $PWD") == "1 /tmp\n"


async def test_an_option_that_ends_the_shell_keeps_what_it_did_and_does_not_last(shell: Shell):
    result = await shell.run("set -eu; export A=1; false; echo not reached")
    assert (result.exit_code, result.output) == (1, "")
    assert await output(shell, "false; echo $A ${NOPE}going on") == "1 going on\n"


async def test_tracing_shows_the_command_and_nothing_of_the_session(shell: Shell):
    assert await output(shell, "set -x; true") in ("++ true\n", "+ true\n")


async def test_a_trap_of_the_command_runs_and_what_it_did_is_kept(shell: Shell):
    assert await output(shell, "trap 'echo bye' EXIT; export A=1") == "bye\n"
    assert await output(shell, "echo $A") == "1\n"


async def test_a_command_that_hangs_is_killed_and_the_session_goes_on_from_before(shell: Shell):
    await shell.run("cd /tmp; export A=1")
    result = await shell.run("echo before; export A=2; cd /; setsid sleep 1000 & sleep 1000", timeout_s=0.5)
    assert (result.timed_out, result.exit_code, result.output) == (True, 124, "before\n")
    assert await output(shell, "echo $A $PWD") == "1 /tmp\n"


async def test_a_command_that_kills_its_shell_leaves_the_session_as_it_was(shell: Shell):
    await shell.run("export A=1")
    assert (await shell.run("export A=2; kill -9 $$")).exit_code == 137
    assert (await shell.run("export A=3; exec true")).exit_code == 0
    assert await output(shell, "echo $A") == "1\n"


async def test_a_folder_that_is_gone_is_named_and_the_session_goes_on(shell: Shell):
    await shell.run("mkdir gone; cd gone; rmdir ../gone")
    result = await shell.run("pwd")
    assert result.exit_code == 0
    assert result.output.splitlines()[0].endswith("/gone is gone; now in " + result.output.splitlines()[1])
    assert await output(shell, "echo fine") == "fine\n"


async def test_the_folder_before_is_known(shell: Shell):
    await shell.run("cd /tmp")
    await shell.run("cd /")
    assert await output(shell, "cd - > /dev/null; pwd") == "/tmp\n"


async def test_a_folder_reached_by_a_link_keeps_the_name_it_was_reached_by(shell: Shell):
    await shell.run("mkdir -p real; ln -sfn real alias; cd alias")
    assert (await output(shell, "basename $PWD; basename $(pwd -P)")) == "alias\nreal\n"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat <<'END'\n$x 'y'\nEND\necho after", "$x 'y'\nafter\n"),
        ("echo a\n\n\necho b # comment", "a\nb\n"),
        ("echo ends in a backslash\\", "ends in a backslash\n"),
        ("f() {\n  echo $1\n}\nf x", "x\n"),
        ("echo ')' \"'\" '\"' \\' }", ")' \" ' }\n".replace(")'", ") '")),
        ("for i in 1 2; do\necho $i; done", "1\n2\n"),
        ("", ""),
        ("# nothing", ""),
    ],
)
async def test_text_of_any_form_is_one_command(shell: Shell, command: str, expected: str):
    assert await output(shell, command) == expected


async def test_text_that_is_not_shell_fails_and_the_session_goes_on(shell: Shell):
    await shell.run("export A=1")
    result = await shell.run("if then ) (")
    assert result.exit_code == 2
    assert "yntax error" in result.output
    assert await output(shell, "echo $A") == "1\n"


async def test_messages_count_lines_as_the_command_does(shell: Shell):
    await shell.run("export TWO='a\nb'")
    if await output(shell, "echo ${BASH_VERSION:+bash}") != "bash\n":
        pytest.skip("not every sh counts lines")
    assert "2" in (await output(shell, "\nno-such-program")).split("no-such-program")[0]


async def test_streams_come_merged_in_order(shell: Shell):
    result = await shell.run("echo a; echo b >&2; echo c")
    assert (result.stdout, result.stderr) == (b"a\nb\nc\n", b"")


async def test_output_is_cut_in_the_middle_and_the_session_is_kept(shell: Shell):
    result = await shell.run("export A=1; seq 1 100000", output_limit=100)
    assert result.omitted_bytes > 0
    assert len(result.stdout) < 200
    assert await output(shell, "echo $A") == "1\n"


async def test_a_background_job_does_not_hold_up_the_session_and_lives_on(shell: Shell):
    result = await shell.run("sleep 1000 > /dev/null 2>&1 & echo $! > pid; cd /tmp", timeout_s=30)
    assert not result.timed_out
    assert await output(shell, "pwd; kill -0 $(cat $OLDPWD/pid) && echo alive") == "/tmp\nalive\n"


async def test_a_command_of_any_length_runs(shell: Shell):
    await shell.run("export A=1")
    result = await shell.run("x='" + "'\\''" * 60_000 + "'; echo ${#x} $A")
    assert result.output == "60000 1\n"
    assert await output(shell, f"x='{'日' * 60_000}'; echo ${{#x}} $A | tail -c 3") == " 1\n"


async def test_writing_to_the_sessions_own_descriptor_changes_nothing(shell: Shell):
    await shell.run("export A=1; cd /tmp")
    await shell.run("echo /etc >&63; echo /etc >&9; head -c 1000000 /dev/zero >&63")
    assert await output(shell, "echo $A $PWD") == "1 /tmp\n"


async def test_sessions_run_at_once(box: Sandbox):
    shells = [box.shell() for _ in range(10)]
    await asyncio.gather(*[shell.run(f"export N={i}; cd /tmp") for i, shell in enumerate(shells)])
    assert await asyncio.gather(*[output(shell, "echo $N $PWD") for shell in shells]) == [
        f"{i} /tmp\n" for i in range(10)
    ]
