"""Images from a folder with a Dockerfile: built once for each content, and every failure names its step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes import ImageBuildError, SandboxSpec, SandboxStartError, SandboxUnavailable, docker, local, open_sandbox
from sandboxes.image_build import BUILT_REPOSITORY, built_image, content_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM hermes-sandbox:busybox\nCOPY task /task\n")
    (folder / "task").write_text(f"what {os.urandom(8).hex()}")
    return folder


@pytest.fixture
def clean_up(docker_client) -> Iterator[None]:
    before = {tag for image in docker_client.images.list(BUILT_REPOSITORY) for tag in image.tags}
    yield
    for image in docker_client.images.list(BUILT_REPOSITORY):
        for tag in set(image.tags) - before:
            docker_client.images.remove(tag, force=True)


# ---- the digest


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "task").write_text("other"),
        lambda folder: (folder / "task").chmod(0o755),
        lambda folder: (folder / "task").rename(folder / "renamed"),
        lambda folder: (folder / "more").mkdir(),
        lambda folder: (folder / "link").symlink_to("task"),
        lambda folder: (folder / "Dockerfile").write_text("FROM scratch\n"),
    ],
)
def test_any_change_of_a_folder_changes_its_digest(folder: Path, change):
    before = content_digest(folder)
    assert content_digest(folder) == before
    change(folder)
    assert content_digest(folder) != before


def test_what_is_ignored_does_not_count(folder: Path):
    (folder / ".dockerignore").write_text("# words\n*.log\n")
    before = content_digest(folder)
    (folder / "a.log").write_text("x")
    assert content_digest(folder) == before


def test_a_list_of_what_is_ignored_in_another_encoding_is_named(folder: Path):
    (folder / ".dockerignore").write_bytes("größe".encode("latin-1"))
    with pytest.raises(ImageBuildError, match=r"\.dockerignore is not written in UTF-8"):
        content_digest(folder)


def test_equal_folders_have_one_digest_wherever_they_are(folder: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("Dockerfile", "task"):
        (other / name).write_bytes((folder / name).read_bytes())
    assert content_digest(other) == content_digest(folder)


def test_a_folder_without_a_dockerfile_is_named(tmp_path: Path):
    with pytest.raises(ImageBuildError, match="has no file Dockerfile"):
        content_digest(tmp_path)


# ---- the image


@pytest.mark.docker
@pytest.mark.usefixtures("busybox_image", "clean_up")
async def test_a_box_of_a_folder_has_what_its_dockerfile_made(folder: Path):
    async with open_sandbox("auto", SandboxSpec(build=folder)) as box:
        assert box.backend == "docker"
        assert await box.read("/task") == (folder / "task").read_bytes()


@pytest.mark.docker
@pytest.mark.usefixtures("busybox_image", "clean_up")
async def test_many_boxes_of_one_folder_are_one_build(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="sandboxes.image_build")
    boxes = await asyncio.gather(*(docker.start(SandboxSpec(build=folder)) for _ in range(3)))
    await asyncio.gather(*(box.close() for box in boxes))
    async with open_sandbox("docker", SandboxSpec(build=folder)):
        pass
    said = [record.getMessage() for record in caplog.records]
    assert sum("Step 2/" in line for line in said) == 1
    assert said[0] == f"building the image of {folder}"
    assert said[-1].startswith(f"built the image of {folder} in")


@pytest.mark.docker
@pytest.mark.usefixtures("busybox_image")
def test_a_build_that_fails_names_its_step_and_what_it_said(folder: Path, docker_client):
    with (folder / "Dockerfile").open("a") as file:
        file.write("RUN echo the reason && exit 3\n")
    with pytest.raises(ImageBuildError, match=r"at Step 3/4 : RUN echo the reason") as raised:
        built_image(docker_client, folder)
    assert "\nthe reason\n" in str(raised.value)
    assert "returned a non-zero code: 3" in str(raised.value)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_client")
async def test_an_image_and_a_folder_at_once_are_refused(folder: Path):
    with pytest.raises(SandboxStartError, match="one image"):
        await docker.start(SandboxSpec(image="x", build=folder))


async def test_backends_without_images_refuse_a_folder(folder: Path):
    with pytest.raises(SandboxUnavailable, match="no image"):
        await local.start(SandboxSpec(build=folder))
