"""Making images and root folders: whole or not at all, and every refusal names the next step."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from sandboxes import images, rootfs, runner
from sandboxes.errors import ImageBuildError, ImageNotFound
from sandboxes.image_store import find_image
from sandboxes.images import RECIPES, Recipe, build_image, build_root, export_image, main
from sandboxes.runner_file import RUNNER, runner_digest
from sandboxes.static_program import StaticProgram


def say_nothing(_line: str) -> None:
    """A report to nobody."""


def write_release(target: Path, _report: rootfs.Report, _mirror: str | None) -> None:
    (target / "etc").mkdir()
    (target / "etc/release").write_text("test\n")


def fail_half_way(target: Path, _report: rootfs.Report, _mirror: str | None) -> None:
    (target / "half").write_text("half")
    raise ImageBuildError("the mirror went away")


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch, tmp_path) -> Path:
    """Where builds put their files, so that a test sees what they leave there."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def recipe(docker_client):
    recipe = Recipe("test-recipe", "a file for tests", write_release)
    yield recipe
    for image in docker_client.images.list(filters={"label": f"{images.IMAGE_LABEL}={recipe.tag}"}):
        docker_client.images.remove(image.id, force=True)


# ---- root folders


def test_the_tiny_root_folder_has_a_shell_and_its_modes(tmp_path):
    build_root(RECIPES["busybox"], tmp_path / "root", say_nothing)
    done = subprocess.run([tmp_path / "root/bin/busybox", "echo", "hello"], capture_output=True, check=True)
    assert done.stdout == b"hello\n"
    assert os.readlink(tmp_path / "root/bin/sh") == "busybox"
    modes = {name: (tmp_path / "root" / name).stat().st_mode & 0o7777 for name in ("", "tmp", "root")}
    assert modes == {"": 0o755, "tmp": 0o1777, "root": 0o700}


def test_a_root_folder_that_exists_is_never_written_into(tmp_path):
    (tmp_path / "root").mkdir()
    with pytest.raises(ImageBuildError, match="exists already: remove it"):
        build_root(Recipe("x", "", write_release), tmp_path / "root", say_nothing)


def test_a_build_that_fails_leaves_neither_folder_nor_rest(tmp_path, own_temporary_folder):
    with pytest.raises(ImageBuildError, match="the mirror went away"):
        build_root(Recipe("x", "", fail_half_way), tmp_path / "root", say_nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list(own_temporary_folder.iterdir()) == []


def test_without_debootstrap_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildError, match="apt-get install debootstrap"):
        rootfs.build_debian(tmp_path / "root", say_nothing)


def test_a_failure_of_debootstrap_is_shown_with_its_own_words(monkeypatch, tmp_path):
    fake = tmp_path / "debootstrap"
    fake.write_text("#!/bin/sh\necho I: Retrieving; echo E: Failed getting release file >&2; exit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ImageBuildError, match=r"exit code 3:\n(.|\n)*E: Failed getting release file\n.*--mirror URL"):
        rootfs.build_debian(tmp_path / "root", say_nothing, mirror="http://127.0.0.1:9/debian")


def test_another_user_than_root_is_told_to_use_sudo(monkeypatch, tmp_path):
    fake = tmp_path / "debootstrap"
    fake.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageBuildError, match="only be made by root: run the same command with sudo"):
        rootfs.build_debian(tmp_path / "root", say_nothing)


# ---- images


@pytest.mark.docker
def test_an_image_holds_what_its_recipe_made_under_a_root_that_all_may_enter(recipe, docker_client, tmp_path):
    build_image(recipe, say_nothing)
    export_image(recipe.image, tmp_path / "root")
    assert (tmp_path / "root/etc/release").read_text() == "test\n"
    assert mode_of_root(docker_client, recipe.image) == 0o755


def mode_of_root(client, image: str) -> int:
    container = client.api.create_container(image, command=["true"])["Id"]
    try:
        chunks, _ = client.api.get_archive(container, "/")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            return archive.getmembers()[0].mode & 0o7777
    finally:
        client.api.remove_container(container)


@pytest.mark.docker
def test_an_image_build_that_fails_leaves_the_older_image_and_no_files(recipe, docker_client, own_temporary_folder):
    build_image(recipe, say_nothing)
    before = docker_client.images.get(recipe.image).id
    with pytest.raises(ImageBuildError):
        build_image(Recipe(recipe.tag, "", fail_half_way), say_nothing)
    assert docker_client.images.get(recipe.image).id == before
    assert list(own_temporary_folder.iterdir()) == []


@pytest.mark.docker
def test_an_older_runner_in_an_image_is_renewed_and_the_rest_stays(recipe, docker_client, monkeypatch, tmp_path):
    build_image(recipe, say_nothing)
    assert images.has_current_runner(docker_client, recipe.image)
    monkeypatch.setattr(runner, "RUNNER", StaticProgram("runner", tmp_path))
    (tmp_path / "bin").mkdir()
    for binary in Path(runner.__file__).parent.glob("bin/runner-*"):
        (tmp_path / "bin" / binary.name).write_bytes(b"a newer runner")
    runner_digest.cache_clear()
    try:
        assert not images.has_current_runner(docker_client, recipe.image)
        images.renew_runner(recipe, say_nothing)
        assert images.has_current_runner(docker_client, recipe.image)
    finally:
        runner_digest.cache_clear()
    export_image(recipe.image, tmp_path / "root")
    assert (tmp_path / "root" / RUNNER.lstrip("/")).read_bytes() == b"a newer runner"
    assert (tmp_path / "root/etc/release").read_text() == "test\n"


@pytest.mark.docker
def test_pruning_removes_what_a_newer_build_replaced_and_keeps_the_current_image(recipe, docker_client):
    build_image(recipe, say_nothing)
    older = docker_client.images.get(recipe.image).id
    build_image(recipe, say_nothing)
    current = docker_client.images.get(recipe.image).id
    images.prune_images(docker_client, include_current=False)
    ids = {image.id for image in docker_client.images.list(filters={"label": f"{images.IMAGE_LABEL}={recipe.tag}"})}
    assert older != current
    assert ids == {current}


@pytest.mark.docker
def test_an_exported_image_is_a_root_folder_with_its_owners_and_links(busybox_image, tmp_path):
    export_image(busybox_image, tmp_path / "root")
    assert (tmp_path / "root/tmp").stat().st_mode & 0o7777 == 0o1777
    assert os.readlink(tmp_path / "root/bin/sh") == "busybox"
    assert (tmp_path / "root/bin/busybox").stat().st_uid == os.geteuid()
    assert not (tmp_path / "root/.dockerenv").exists()


@pytest.mark.docker
def test_an_export_of_no_image_leaves_no_folder(docker_client, tmp_path):
    with pytest.raises(ImageNotFound, match="no image hermes-sandbox:nothing here"):
        export_image("hermes-sandbox:nothing", tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.docker
def test_the_default_image_is_the_built_one(docker_client):
    if not images.exists(docker_client, images.BOOKWORM):
        pytest.skip(f"{images.BOOKWORM} is not built: {images.BUILD_COMMAND} bookworm")
    assert find_image(docker_client, None).name == images.BOOKWORM


@pytest.mark.docker
async def test_the_default_image_has_what_agents_use(docker_client):
    from sandboxes import docker
    from sandboxes.base import SandboxSpec

    if not images.exists(docker_client, images.BOOKWORM):
        pytest.skip(f"{images.BOOKWORM} is not built: {images.BUILD_COMMAND} bookworm")
    box = await docker.start(SandboxSpec())
    try:
        await box.write("test_it.py", b"def test_it():\n    assert 1 + 1 == 2\n")
        result = await box.exec(
            "git init -q . && python test_it.py && pytest -q && test -s /etc/ssl/certs/ca-certificates.crt"
        )
        assert result.exit_code == 0, result.output
        assert (await box.exec("id -un; echo ~; touch ~/x && echo ok")).output.split() == ["agent", "/home/agent", "ok"]
    finally:
        await box.close()


# ---- the command


@pytest.mark.docker
def test_the_command_builds_only_what_is_missing(busybox_image, capsys):
    assert main(["build", "busybox"]) == 0  # it may have got the current runner
    capsys.readouterr()
    assert main(["build", "busybox"]) == 0
    assert "exists (--force builds it again)" in capsys.readouterr().err


@pytest.mark.docker
def test_the_command_lists_each_image_with_its_state(busybox_image, capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["hermes-sandbox:bookworm", "hermes-sandbox:busybox"]
    assert " MB, made " in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "nosuch"], "no recipe is called nosuch; there are bookworm, busybox"),
        (["build", "--root", "somewhere"], "--root makes one folder: name one of bookworm, busybox"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_clear_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"images: {message}\n"


def test_the_command_without_a_daemon_says_how_to_start_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert main(["list"]) == 2
    assert "scripts/start_dockerd.sh" in capsys.readouterr().err
