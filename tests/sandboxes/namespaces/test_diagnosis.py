"""Why boxes cannot be made, in words that name the cause and what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.namespaces.diagnosis import explain

PLAIN = {"self/status": "Seccomp:\t0\n", "self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n"}
FAILED = {"runner": "cannot make a user namespace: Operation not permitted", "bwrap": "not installed"}


def fake_proc(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {**PLAIN, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "root", "words"),
    [
        (
            {"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
            False,
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ({"sys/kernel/unprivileged_userns_clone": "0\n"}, False, "kernel.unprivileged_userns_clone=1"),
        ({"sys/user/max_user_namespaces": "0\n"}, True, "user.max_user_namespaces=10000"),
        ({"self/status": "Name:\tx\nSeccomp:\t2\n"}, True, "--security-opt seccomp=unconfined"),
        ({"self/mountinfo": "1 0 8:1 / /proc rw - proc proc rw\n"}, True, "chroot"),
    ],
)
def test_a_cause_that_can_be_seen_is_named_with_its_remedy(
    tmp_path: Path, files: dict[str, str], root: bool, words: str
):
    text = explain(FAILED, proc=fake_proc(tmp_path, files), root=root)
    assert words in text
    assert text.count("\n- ") == 1


def test_what_does_not_concern_root_is_not_named_to_root(tmp_path: Path):
    files = {"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "sys/kernel/unprivileged_userns_clone": "0\n"}
    assert "sysctl" not in explain(FAILED, proc=fake_proc(tmp_path, files), root=True)


def test_a_proc_that_is_partly_hidden_is_named(tmp_path: Path):
    failed = {"runner": "cannot mount /proc, as in a container that masks its own: Operation not permitted"}
    assert "systempaths=unconfined" in explain(failed, proc=fake_proc(tmp_path, {}), root=False)


def test_what_each_program_said_is_kept(tmp_path: Path):
    text = explain(FAILED, proc=fake_proc(tmp_path, {}), root=False)
    assert "runner: cannot make a user namespace: Operation not permitted; bwrap: not installed" in text
