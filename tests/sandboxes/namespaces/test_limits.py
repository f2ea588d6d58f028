"""Where control groups are made, and what holds where they cannot be."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sandboxes.base import SandboxSpec
from sandboxes.namespaces.limits import Hierarchy, find_hierarchies, prepare_limits

SPEC = SandboxSpec(cpus=0.5, memory_mb=100, pids=64, disk_mb=28)


def old_hierarchies(mount: Path) -> tuple[Hierarchy, ...]:
    found = []
    for controller in ("memory", "pids", "cpu"):
        here = mount / controller / "job"
        here.mkdir(parents=True)
        found.append(Hierarchy(1, mount / controller, here, (controller,)))
    return tuple(found)


def unified(mount: Path, *, here: str = "job", controllers: str = "cpu memory pids") -> tuple[Hierarchy, ...]:
    (mount / here).mkdir(parents=True)
    for folder in (mount / here, *(mount / here).parents):
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.controllers").write_text(controllers)
        if folder == mount:
            break
    return (Hierarchy(2, mount, mount / here, tuple(controllers.split())),)


def settings(group: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in group.iterdir()}


def test_version_1_has_a_group_below_the_own_one_in_each_hierarchy(tmp_path: Path):
    hierarchies = old_hierarchies(tmp_path)
    limits = prepare_limits(SPEC, "box", hierarchies=hierarchies)
    assert limits.cgroups == tuple(tmp_path / name / "job" / "box" for name in ("memory", "pids", "cpu"))
    assert "v1" in limits.description
    limits.remove()


def test_version_2_has_one_group_with_every_limit(tmp_path: Path):
    limits = prepare_limits(SPEC, "box", hierarchies=unified(tmp_path))
    assert limits.cgroups == (tmp_path / "job" / "box",)
    assert settings(tmp_path / "job" / "box") == {
        "memory.max": str(128 << 20),
        "pids.max": "80",
        "cpu.max": "100000 200000",
        "cpu.weight": "50",
    }
    assert (tmp_path / "job" / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_where_the_own_group_cannot_have_groups_the_next_one_above_is_taken(tmp_path: Path):
    hierarchies = unified(tmp_path, here="slice/job")
    (tmp_path / "slice" / "job" / "cgroup.subtree_control").unlink()
    (tmp_path / "slice" / "job" / "cgroup.subtree_control").mkdir()
    limits = prepare_limits(SPEC, "box", hierarchies=hierarchies)
    assert limits.cgroups == (tmp_path / "slice" / "box",)


def test_a_group_without_all_controllers_is_passed_over(tmp_path: Path):
    hierarchies = unified(tmp_path, here="slice/job")
    (tmp_path / "slice" / "job" / "cgroup.controllers").write_text("memory pids")
    limits = prepare_limits(SPEC, "box", hierarchies=hierarchies)
    assert limits.cgroups == (tmp_path / "slice" / "box",)


def test_without_control_groups_each_process_is_limited_and_the_reason_is_said(tmp_path: Path):
    limits = prepare_limits(SPEC, "box", hierarchies=unified(tmp_path, controllers="hugetlb"))
    assert limits.cgroups == ()
    assert dict(limits.rlimits)[resource.RLIMIT_NPROC] == 64
    assert dict(limits.rlimits)[resource.RLIMIT_DATA] == 100 << 20
    assert "limits per process" in limits.description
    assert "no control of memory, pids, cpu" in limits.description


def test_a_group_that_cannot_be_set_is_removed_again(tmp_path: Path):
    memory, pids, cpu = old_hierarchies(tmp_path)
    missing = Hierarchy(1, cpu.mount, tmp_path / "not there", cpu.controllers)
    limits = prepare_limits(SPEC, "box", hierarchies=(memory, pids, missing))
    assert limits.cgroups == ()
    assert list(memory.here.iterdir()) == list(pids.here.iterdir()) == []


def test_no_core_is_dumped_and_files_are_bounded_in_either_case(tmp_path: Path):
    for hierarchies in (unified(tmp_path), ()):
        rlimits = dict(prepare_limits(SPEC, "box", hierarchies=hierarchies).rlimits)
        assert rlimits[resource.RLIMIT_CORE] == 0
        assert rlimits[resource.RLIMIT_NOFILE] == 4096


OLD = """\
25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
33 25 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
"""
OLD_MEMBERSHIP = "5:cpu,cpuacct:/a/b\n4:memory:/docker/abc/inner\n3:pids:/\n1:name=systemd:/x\n0::/\n"


@pytest.mark.parametrize(
    ("mountinfo", "membership", "expected"),
    [
        (
            OLD,
            OLD_MEMBERSHIP,
            {
                ("cpu",): "/sys/fs/cgroup/cpu,cpuacct/a/b",
                ("memory",): "/sys/fs/cgroup/memory/inner",
                ("pids",): "/sys/fs/cgroup/pids",
            },
        ),
        ("30 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/user/job\n", {(): "/sys/fs/cgroup/user/job"}),
        ("30 1 0:27 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/pod/x\n", {(): "/sys/fs/cgroup/x"}),
        ("30 1 0:27 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/elsewhere\n", {(): "/sys/fs/cgroup"}),
        ("24 1 0:5 / /proc rw - proc proc rw\n", "", {}),
    ],
)
def test_the_own_place_is_found_in_every_hierarchy(
    mountinfo: str, membership: str, expected: dict[tuple[str, ...], str]
):
    found = {hierarchy.controllers: str(hierarchy.here) for hierarchy in find_hierarchies(mountinfo, membership)}
    assert found == expected
