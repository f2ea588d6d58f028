"""One task, one box: when it opens, who closes it, and what a closed task does."""

import asyncio
import uuid

import pytest

from environments.tools.workspaces import (
    BoxPlan,
    Workspace,
    WorkspaceClosed,
    WorkspaceError,
    WorkspaceNotPrepared,
    finish,
    open_boxes,
    workspace_of,
    workspace_scope,
)
from sandboxes import register_backend, registry
from sandboxes.base import SandboxSpec
from sandboxes.errors import SandboxClosed, SandboxStartError

LOCAL = BoxPlan("local", SandboxSpec())


def new_id():
    return str(uuid.uuid4())


async def test_outside_every_scope_there_is_no_box_and_the_error_says_what_to_write():
    with pytest.raises(WorkspaceError, match="workspace_scope"):
        workspace_of(new_id())


async def test_a_box_opens_at_its_first_use_and_once_for_many_callers():
    async with workspace_scope(LOCAL):
        workspace = workspace_of(new_id())
        assert not workspace.has_box
        boxes = await asyncio.gather(*(workspace.box() for _ in range(5)))
        assert len({id(box) for box in boxes}) == 1
    assert boxes[0].closed


async def test_whatever_a_backend_raises_is_a_fault_of_the_box(monkeypatch):
    async def broken(spec):
        raise RuntimeError("not today")

    monkeypatch.setattr(registry, "_registered", {})
    register_backend("broken", broken)
    async with workspace_scope(BoxPlan("broken", SandboxSpec())):
        with pytest.raises(SandboxStartError, match="broken started no box: RuntimeError: not today"):
            await workspace_of(new_id()).box()


async def test_open_boxes_are_counted_until_they_are_closed():
    before = open_boxes()
    async with workspace_scope(LOCAL):
        workspaces = [workspace_of(new_id()) for _ in range(3)]
        await asyncio.gather(*(workspace.box() for workspace in workspaces[:2]))
        assert open_boxes() == before + 2
    assert open_boxes() == before


async def test_a_task_is_found_by_its_id_from_every_child():
    async with workspace_scope(LOCAL):
        task_id = new_id()
        first = workspace_of(task_id)

        async def child():
            return workspace_of(task_id)

        assert await asyncio.create_task(child()) is first
        assert await asyncio.to_thread(workspace_of, task_id) is first


async def test_a_closed_task_refuses_and_opens_no_second_box():
    async with workspace_scope(LOCAL):
        workspace = workspace_of(new_id())
        box = await workspace.box()
        await workspace.close()
        await workspace.close()
        with pytest.raises(WorkspaceClosed):
            await workspace.box()
        with pytest.raises(WorkspaceClosed):
            workspace_of(workspace.task_id)
    with pytest.raises(SandboxClosed):
        await box.exec("true")


async def test_a_task_is_bound_once():
    async with workspace_scope(LOCAL) as scope:
        task_id = new_id()
        scope.bind(task_id, LOCAL)
        with pytest.raises(WorkspaceError, match="has a workspace already"):
            scope.bind(task_id, LOCAL)


async def test_preparing_uses_the_box_that_nobody_else_may_use_yet():
    order = []

    async def prepare(workspace: Workspace):
        box = await workspace.box()
        await asyncio.sleep(0.01)
        await box.write("/workspace/given.txt", b"given")
        order.append("prepared")

    async def read(workspace):
        content = await (await workspace.box()).read("/workspace/given.txt")
        order.append("read")
        return content

    async with workspace_scope(BoxPlan("local", SandboxSpec(), prepare=prepare)):
        workspace = workspace_of(new_id())
        assert await asyncio.gather(read(workspace), read(workspace)) == [b"given", b"given"]
    assert order == ["prepared", "read", "read"]


async def test_a_box_whose_preparation_fails_is_removed():
    boxes = []

    async def prepare(workspace: Workspace):
        boxes.append(await workspace.box())
        raise KeyError("files")

    async with workspace_scope(BoxPlan("local", SandboxSpec(), prepare=prepare)):
        with pytest.raises(WorkspaceNotPrepared, match="KeyError: 'files'"):
            await workspace_of(new_id()).box()
        assert boxes[0].closed


async def test_cancelling_while_a_box_opens_leaves_none():
    boxes, opened = [], asyncio.Event()

    async def prepare(workspace: Workspace):
        boxes.append(await workspace.box())
        opened.set()
        await asyncio.sleep(60)

    async def rollout():
        async with workspace_scope(BoxPlan("local", SandboxSpec(), prepare=prepare)):
            await workspace_of(new_id()).box()

    task = asyncio.create_task(rollout())
    await opened.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert boxes[0].closed


async def test_a_scope_that_is_cancelled_closes_its_boxes_first():
    box, inside = [], asyncio.Event()

    async def rollout():
        async with workspace_scope(LOCAL):
            box.append(await workspace_of(new_id()).box())
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(rollout())
    await inside.wait()
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert box[0].closed


async def test_closing_goes_on_to_its_end_however_often_it_is_cancelled():
    done = []

    async def slow():
        await asyncio.sleep(0.02)
        done.append(True)

    task = asyncio.create_task(finish(slow()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done


async def test_what_the_agent_left_running_is_killed_once_and_its_session_is_gone():
    async with workspace_scope(LOCAL):
        workspace = workspace_of(new_id())
        workspace.agent_acts()
        shell = await workspace.shell()
        await shell.run("export X=1; sleep 100 & echo $!")
        box = await workspace.box()
        await workspace.end_agent_part()
        assert await workspace.shell() is not shell
        started = await box.start("sleep 100")
        await workspace.end_agent_part()
        assert (await box.poll(started)).exit_code is None


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("a", "/workspace/a"),
        ("/etc/x", "/etc/x"),
        ("../x", "/x"),
        (".", "/workspace"),
        ("a//b/./c", "/workspace/a/b/c"),
    ],
)
def test_relative_paths_start_at_the_working_folder(path, absolute):
    assert Workspace("id", LOCAL).absolute(path) == absolute
