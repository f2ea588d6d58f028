"""Local boxes: what they do without isolation."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes import SandboxSpec, SandboxUnavailable, local, open_sandbox
from sandboxes.local import path_translator


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/workspace", "/t"),
        ("/workspace/a b", "/t/a b"),
        ("cat '/workspace/x' \"/workspace/y\" >/workspace/z; cd /workspace", "cat '/t/x' \"/t/y\" >/t/z; cd /t"),
        ("A=/workspace:/workspace/b", "A=/t:/t/b"),
        ("/workspaces /workspace2 /workspace-x /workspace.bak", None),
        ("/srv/workspace ./workspace ~/workspace $HOME/workspace x/workspace", None),
    ],
)
def test_the_working_folder_is_translated_where_a_path_begins_with_it(text: str, expected: str | None):
    assert path_translator("/workspace", "/t")(text) == (expected or text)


async def test_paths_of_the_working_folder_work_in_methods_and_in_commands():
    async with open_sandbox("local") as box:
        await box.write("/workspace/a/file", b"content")
        assert (
            await box.exec("cat /workspace/a/file; cat $HERMES_WORKSPACE/a/file; cat a/file")
        ).stdout == b"content" * 3
        assert (await box.exec(["cat", "/workspace/a/file"], cwd="/workspace/a")).stdout == b"content"
        shell = box.shell()
        await shell.run("cd /workspace/a")
        assert (await shell.run("cat file; cat /workspace/a/file")).stdout == b"contentcontent"


async def test_the_folder_is_gone_after_the_box():
    async with open_sandbox("local") as box:
        assert isinstance(box, local.LocalSandbox)
        folder = box.folder
        await box.write("deep/file", b"")
        made = Path((await box.exec("mktemp -d")).stdout.decode().strip())
        assert made.is_relative_to(folder)
        assert (await box.exec("ls -A")).stdout == b"deep\n"
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


REMOVER = """
import os, sys
from pathlib import Path
from sandboxes.folders import remove_folder

folder = Path(sys.argv[1])
if os.geteuid() == 0:  # whom no mode keeps out
    for path in (folder.parent, folder, *folder.rglob("*")):
        os.chown(path, 60001, 60001)
    for path in folder.parents[1:]:
        path.chmod(path.stat().st_mode | 0o011)
    os.setuid(60001)
(folder / "closed" / "deep").chmod(0o500)
(folder / "closed").chmod(0)
remove_folder(folder)
"""


def test_a_folder_is_removed_though_folders_in_it_were_closed(tmp_path: Path):
    folder = tmp_path / "box"
    (folder / "closed" / "deep").mkdir(parents=True)
    (folder / "closed" / "deep" / "file").touch()
    subprocess.run([sys.executable, "-c", REMOVER, folder], check=True)
    assert not folder.exists()


OWNER = """
import asyncio, sys
from sandboxes import start_sandbox

async def main():
    box = await start_sandbox("local")
    await box.exec(f"trap '' TERM; setsid sleep {sys.argv[1]} & (setsid sleep {sys.argv[1]} &) ; true")
    print(box.folder, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def processes_with(mark: str) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if line == f"sleep {mark}"]


async def test_an_owner_that_is_killed_leaves_no_process_and_no_folder():
    mark = str(time.time_ns())
    with subprocess.Popen([sys.executable, "-c", OWNER, mark], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir()
        assert len(processes_with(mark)) == 2
        owner.kill()
    async with asyncio.timeout(20):
        while processes_with(mark) or folder.exists():
            await asyncio.sleep(0.01)


async def test_the_risk_is_logged_once(caplog: pytest.LogCaptureFixture):
    local._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            async with open_sandbox("local"):
                pass
    assert [record.message for record in caplog.records] == [
        "local sandbox: commands of the model run on this machine, with your rights and no isolation; "
        "use docker or bubblewrap unless you trust them"
    ]


async def test_an_image_is_refused():
    with pytest.raises(SandboxUnavailable, match="no image"):
        await local.start(SandboxSpec(image="task:1"))
