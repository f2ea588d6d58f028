"""Groups on disk: whole lines, in the order of their items, and nothing lost that was finished."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs.base import BaseEnv
from atroposlib.envs.recording import GroupRecorder, check_writable, readable_rollout
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.wire import GROUP_KEYS
from tests.atroposlib.envs.counting_env import CountingConfig, CountingEnv


def group(number: int, **more: Any) -> dict[str, Any]:
    return {"tokens": [[number, 2]], "masks": [[-100, 2]], "scores": [0.5], **more}


def numbers(path: Path | None) -> list[int]:
    assert path is not None
    return [json.loads(line)["tokens"][0][0] for line in path.read_text().splitlines()]


async def test_a_group_is_in_the_file_at_once_and_the_end_puts_all_in_the_order_of_their_items(tmp_path):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    for number, item in ((20, 2), (0, 0), (40, 4), (1, 0), (10, 1)):
        await recorder.record(group(number), item)
    assert numbers(recorder.path) == [20, 0, 40, 1, 10]
    recorder.close()
    recorder.close()
    assert numbers(recorder.path) == [0, 1, 10, 20, 40]
    assert recorder.written == 5
    assert list(tmp_path.iterdir()) == [recorder.path]


async def test_a_group_without_a_number_stays_behind_the_one_before_it(tmp_path):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    for number, item in ((7, None), (20, 2), (8, None), (0, 0)):
        await recorder.record(group(number), item)
    recorder.close()
    assert numbers(recorder.path) == [7, 0, 20, 8]


async def test_what_waits_for_an_earlier_item_is_not_kept_in_memory(tmp_path):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    await recorder.record(group(1), 1)
    tracemalloc.start()
    try:
        for number in range(2, 102):
            await recorder.record(group(number, text=f"{number:0100000d}"), number)
        held, _ = tracemalloc.get_traced_memory()
        await recorder.record(group(0), 0)
        recorder.close()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert numbers(recorder.path) == list(range(102))
    assert held < 300_000
    assert most < 2_000_000


async def test_where_the_end_cannot_sort_the_groups_stay_and_a_line_says_so(tmp_path, caplog):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    await recorder.record(group(1), 1)
    await recorder.record(group(0), 0)
    (tmp_path / ".g.jsonl.sorting").symlink_to(tmp_path / "absent" / "folder")
    recorder.close()
    assert numbers(recorder.path) == [1, 0]
    assert "stay in the order in which they were finished" in caplog.text


async def test_a_line_has_every_key_that_the_wire_knows_and_the_environments_own(tmp_path):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    await recorder.record(group(1, mine=[object()], text="half \udc80"))
    recorder.close()
    line = json.loads((tmp_path / "g.jsonl").read_text())
    assert set(GROUP_KEYS) <= set(line)
    assert line["mine"][0].startswith("<object")


async def test_groups_written_from_many_tasks_do_not_mix(tmp_path):
    recorder = GroupRecorder(tmp_path / "g.jsonl")
    await asyncio.gather(*(recorder.record(group(number, text="x" * 10_000)) for number in range(50)))
    recorder.close()
    assert sorted(numbers(recorder.path)) == list(range(50))


def test_a_folder_that_cannot_be_written_names_the_setting():
    with pytest.raises(ConfigError, match=r"--env\.x: cannot write to /proc/nowhere"):
        check_writable(Path("/proc/nowhere"), "--env.x")


def test_the_best_rollout_of_the_first_group_is_shown(tmp_path):
    path = tmp_path / "g.jsonl"
    call = {"function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "parts"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "y" * 5000},
    ]
    both = {"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]], "scores": [0.0, 1.0]}
    path.write_text(json.dumps({**both, "messages": [[], conversation]}) + "\nnot json\n")
    shown = readable_rollout(path)
    assert "rollout 2 of 2: score 1.0, 2 tokens, 1 of them trained on" in shown
    assert '[assistant]\nhm\n-> terminal({"command": "ls"})' in shown
    assert '"text": "parts"' in shown
    assert "(1000 more characters)" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "holds no groups"), ("nonsense", "line 1 is not JSON"), ("[1]", "line 1 is not a group")],
)
def test_a_file_that_holds_no_rollout_is_an_error(tmp_path, content, message):
    path = tmp_path / "g.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        readable_rollout(path)


def test_a_group_without_messages_says_how_to_record_them(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps(group(1)))
    assert "--env.include_messages" in readable_rollout(path)


# process


def environment(path: Path, env_class: type[BaseEnv] = CountingEnv, **changes: Any) -> Any:
    settings = {"group_size": 2, "use_wandb": False, "max_num_workers": 4, "data_path_to_save_groups": str(path)}
    return env_class(CountingConfig(**{**settings, **changes}), [])


async def test_items_are_worked_on_at_once_and_written_in_order(tmp_path):
    class Slow(CountingEnv):
        at_once = most = 0

        async def collect_trajectories(self, item):
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await asyncio.sleep(0.05 if item["n"] == 1 else 0.01)
            self.at_once -= 1
            return await super().collect_trajectories(item)

    env = environment(tmp_path / "g.jsonl", Slow, total_steps=7)
    await env.process_manager()
    await env.aclose()
    assert numbers(env.recorder.path) == [1, 2, 3, 4, 5, 6, 7]
    assert env.most == 4
    assert env.cleaned == 7


async def test_an_item_that_fails_is_replaced_by_the_next_one(tmp_path):
    class Picky(CountingEnv):
        async def collect_trajectories(self, item):
            if item["n"] in (2, 3):
                return None, []
            return await super().collect_trajectories(item)

    env = environment(tmp_path / "g.jsonl", Picky, total_steps=3)
    await env.process_manager()
    await env.aclose()
    assert numbers(env.recorder.path) == [1, 4, 5]


async def test_items_in_hand_are_waited_for_when_many_others_give_nothing(tmp_path):
    class OneOfMany(CountingEnv):
        async def collect_trajectories(self, item):
            if item["n"] > 1:
                return None, []
            await asyncio.sleep(0.2)
            return await super().collect_trajectories(item)

    env = environment(tmp_path / "g.jsonl", OneOfMany, total_steps=1, max_num_workers=2)
    env.n_groups_to_process = 2
    with pytest.raises(AtroposError, match="items in a row gave no group"):
        await env.process_manager()
    await env.aclose()
    assert numbers(env.recorder.path) == [1]


async def test_items_handed_back_are_worked_on_before_new_ones(tmp_path):
    class HandingBack(CountingEnv):
        async def collect_trajectories(self, item):
            group, later = await super().collect_trajectories(item)
            return group, [{"n": 100}] if item["n"] == 1 else later

    env = environment(tmp_path / "g.jsonl", HandingBack, total_steps=3, max_num_workers=1, items=2)
    await env.process_manager()
    await env.aclose()
    assert numbers(env.recorder.path) == [1, 100, 2]


async def test_several_groups_of_one_item_are_all_written(tmp_path):
    class Several(CountingEnv):
        async def collect_trajectories(self, item):
            group, later = await super().collect_trajectories(item)
            return [group, None, group], later

    env = environment(tmp_path / "g.jsonl", Several, total_steps=2)
    await env.process_manager()
    await env.aclose()
    assert numbers(env.recorder.path) == [1, 1, 2, 2]


async def test_what_was_finished_is_written_in_order_when_a_run_is_broken_off(tmp_path):
    class Stuck(CountingEnv):
        async def collect_trajectories(self, item):
            if item["n"] == 2:
                await asyncio.sleep(60)
            return await super().collect_trajectories(item)

    env = environment(tmp_path / "g.jsonl", Stuck, total_steps=4)
    task = asyncio.create_task(env.process_manager())
    async with asyncio.timeout(10):
        while getattr(env, "cleaned", 0) < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await env.aclose()
    assert numbers(env.recorder.path) == [1, 3, 4]
    assert env.cleaned == 4


def started(path: Path, *flags: str, **more: Any) -> subprocess.Popen[bytes]:
    """A run of the counting environment that writes to ``path``."""
    command = [sys.executable, "-m", "tests.atroposlib.envs.counting_env", "process"]
    return subprocess.Popen([*command, "--data_path_to_save_groups", str(path), *flags], stderr=subprocess.PIPE, **more)


def kill_after(process: subprocess.Popen[bytes], path: Path, groups: int) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_bytes().count(b"\n") >= groups):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()


def test_a_killed_process_leaves_only_whole_lines(tmp_path):
    path = tmp_path / "g.jsonl"
    kill_after(started(path, "--env.seconds", "0.01"), path, groups=3)
    found = numbers(path)
    assert len(found) >= 3
    assert len(set(found)) == len(found)


def test_a_killed_process_leaves_the_groups_of_all_items_that_came_after_a_slow_one(tmp_path):
    path = tmp_path / "g.jsonl"
    kill_after(started(path, "--total_steps", "20", "--env.first_seconds", "600"), path, groups=19)
    assert sorted(numbers(path)) == list(range(2, 21))
    before = path.read_bytes()
    told = started(path, "--total_steps", "2").communicate(timeout=30)[1].decode()
    assert path.read_bytes() == before
    assert numbers(tmp_path / "g_1.jsonl") == [1, 2]
    assert f"what earlier runs wrote to {path} is kept" in told


def test_a_file_that_has_no_room_ends_the_run_by_name_and_keeps_whole_lines(tmp_path):
    path = tmp_path / "g.jsonl"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (5000, 5000))
    process = started(path, "--total_steps", "50", preexec_fn=limit, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    told = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 2
    assert f"--env.data_path_to_save_groups: cannot write to {path}: File too large" in told
    assert 0 < len(numbers(path)) < 50
