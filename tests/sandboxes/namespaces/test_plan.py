"""The plan of a box, for either program that makes it."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxes.namespaces.host_root import host_root
from sandboxes.namespaces.plan import (
    SYSTEM,
    Plan,
    bind,
    bwrap_arguments,
    encode,
    file,
    folder,
    link,
    program,
    user_folder,
)

STEPS = (
    bind("/usr"),
    link("usr/bin", "/bin"),
    folder("/tmp", 0o1777),
    file("/etc/hosts", "127.0.0.1 a\n"),
    *program("/opt/bin/run", "#!/bin/sh\n"),
    *user_folder("/workspace"),
    SYSTEM,
)
PLAN = Plan(STEPS, owner=7, disk_bytes=1000, ids=5, image=Path("/image"), cgroups=(Path("/cg"),), rlimits=((4, 0),))


def test_the_runner_gets_settings_first_and_then_the_steps_in_order():
    words = PLAN.words(3)
    first_step = words.index("bind")
    assert words[:first_step] == [
        *("owner", "7", "cgroup", "/cg", "rlimit", "4", "0", "disk", "1000", "name", "sandbox"),
        *("seccomp", "3", "ids", "5", "65536", "image", "/image"),
    ]
    assert words[first_step : first_step + 9] == [
        "bind",
        "/usr",
        "/usr",
        "link",
        "usr/bin",
        "/bin",
        "folder",
        "1777",
        "/tmp",
    ]
    assert words[-1] == "system"


def test_words_are_ended_by_a_nul_each():
    assert encode(["bind", "/a b", ""]) == b"bind\0/a b\0\0"


def test_a_link_of_the_machine_is_bound_by_what_it_leads_to(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    assert bind(str(tmp_path / "alias")).operands == (os.path.realpath(tmp_path / "real"), str(tmp_path / "alias"))


def arguments(*, root: bool) -> list[str]:
    texts: list[str] = []

    def open_text(text: str) -> int:
        texts.append(text)
        return 40 + len(texts)

    return bwrap_arguments(PLAN, bwrap="/bin/bwrap", runner=Path("/r"), seccomp=9, root=root, open_text=open_text)


def after(words: list[str], *sought: str) -> bool:
    """Whether the words stand together in the command line."""
    return any(words[start : start + len(sought)] == list(sought) for start in range(len(words)))


def test_bubblewrap_closes_what_it_leaves_open_of_its_own_accord():
    for root in (True, False):
        words = arguments(root=root)
        assert after(words, "--cap-drop", "ALL")
        assert after(words, "--ro-bind", "/proc/sys", "/proc/sys")
        assert words.index("--proc") < words.index("/proc/sys")
        assert after(words, "--seccomp", "9")
        assert {"--die-with-parent", "--new-session", "--as-pid-1", "--unshare-net", "--unshare-pid"} <= set(words)


def test_bubblewrap_has_the_same_steps():
    words = arguments(root=False)
    assert after(words, "--ro-bind", "/usr", "/usr")
    assert after(words, "--symlink", "usr/bin", "/bin")
    assert after(words, "--dir", "/tmp", "--chmod", "1777", "/tmp")
    assert after(words, "--file", "41", "/etc/hosts")
    assert after(words, "--chmod", "0755", "/opt/bin/run")
    assert words.index("/opt/bin") < words.index("--file")


def test_root_keeps_a_few_capabilities_and_others_one_id():
    assert after(arguments(root=True), "--cap-add", "CAP_SETUID")
    assert "--unshare-user" not in arguments(root=True)
    assert after(arguments(root=False), "--unshare-user", "--uid", "1000", "--gid", "1000")
    assert "--cap-add" not in arguments(root=False)


def test_no_folder_of_people_or_services_is_in_the_plan():
    sources = {step.operands[0] for step in host_root("/workspace") if step.word == "bind"}
    own = {source for source in sources if "site-packages" in source or "dist-packages" in source}
    for source in sources - own:
        assert source.startswith(("/usr", "/etc/", "/bin", "/sbin", "/lib", "/opt/")), source
    names = {os.path.basename(source) for source in sources}
    assert names.isdisjoint({"passwd", "shadow", "group", "sudoers", "ssh", "hosts", "resolv.conf", "machine-id"})
