"""The images of the Docker backend, made on this machine: ``python -m sandboxes.images build|list|export|prune``.

    build [bookworm] [busybox]     make the images that are missing, and give the others the current runner
                                   (--force: make all of them again)
    build bookworm --root DIR      unpack the same files into a new folder instead, without Docker (for bubblewrap)
    export IMAGE DIR               the files of any local image in a new folder (for bubblewrap)
    list                           what is built
    prune [--all]                  remove images that a newer build replaced (--all: the current ones too)

A build is atomic: the tag or folder appears once it is whole, and a build that dies leaves what was there before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sandboxes import docker_daemon, rootfs
from sandboxes.errors import ImageBuildError, ImageNotFound, ImageUnbuildable, SandboxError, SandboxUnavailable
from sandboxes.folders import make_folder, remove_folder
from sandboxes.ownership import container_labels
from sandboxes.rootfs import Report
from sandboxes.runner import runner_path
from sandboxes.runner_file import RUNNER, RUNNER_LABEL, RUNNER_MODE, runner_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient

REPOSITORY = "hermes-sandbox"
BOOKWORM = f"{REPOSITORY}:bookworm"
BUSYBOX = f"{REPOSITORY}:busybox"
BUILD_COMMAND = "python -m sandboxes.images build"
IMAGE_LABEL = "hermes.image"

_IMPORT_TIMEOUT_S = 600
_CHANGES = ('CMD ["/bin/sh"]', "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


@dataclass(frozen=True)
class Recipe:
    """How one image is made: into an empty folder, told through ``report``, from ``mirror`` where it needs one."""

    tag: str
    contents: str
    build: Callable[[Path, Report, str | None], None]

    @property
    def image(self) -> str:
        return f"{REPOSITORY}:{self.tag}"


RECIPES = {
    recipe.tag: recipe
    for recipe in (
        Recipe(
            "bookworm",
            f"Debian {rootfs.DEBIAN_SUITE} with {', '.join(rootfs.DEBIAN_PACKAGES)}",
            lambda target, report, mirror: rootfs.build_debian(target, report, mirror=mirror),
        ),
        Recipe(
            "busybox",
            "a static busybox, 2 MB, for tests",
            lambda target, report, _mirror: rootfs.build_busybox(target, report),
        ),
    )
}


def build_image(recipe: Recipe, report: Report, *, mirror: str | None = None) -> None:
    """Make the image of ``recipe`` and tag it, whether or not it exists.

    Raises: ImageBuildError, SandboxUnavailable (no Docker daemon).
    """
    client = docker_daemon.connect(timeout_s=_IMPORT_TIMEOUT_S)
    folder = make_folder(f"image-{uuid.uuid4().hex[:12]}")
    try:
        root = folder / "root"
        _make_root_folder(root)
        recipe.build(root, report, mirror)
        _import(client, recipe, root, report)
    finally:
        remove_folder(folder)


def has_current_runner(client: DockerClient, image: str) -> bool:
    """Whether boxes of a local image start without being given the runner first."""
    facts = client.api.inspect_image(image)
    labels: Mapping[str, str] = facts["Config"].get("Labels") or {}
    return labels.get(RUNNER_LABEL) == runner_digest(facts["Architecture"])


def renew_runner(recipe: Recipe, report: Report) -> None:
    """Put the current runner into the existing image of ``recipe``; needs root, as the files keep their owners.

    Raises: ImageBuildError, SandboxUnavailable (no Docker daemon).
    """
    if os.geteuid() != 0:
        raise ImageUnbuildable(f"only root can renew the runner in {recipe.image}: run the same command with sudo")
    client = docker_daemon.connect(timeout_s=_IMPORT_TIMEOUT_S)
    folder = make_folder(f"image-{uuid.uuid4().hex[:12]}")
    try:
        export_image(recipe.image, folder / "root")
        _import(client, recipe, folder / "root", report)
    finally:
        remove_folder(folder)


def build_root(recipe: Recipe, target: Path, report: Report, *, mirror: str | None = None) -> None:
    """Make the files of ``recipe`` in the new folder ``target``, without Docker.

    Raises: ImageBuildError.
    """
    with _new_folder(target) as unfinished:
        recipe.build(unfinished, report, mirror)


def export_image(image: str, target: Path) -> None:
    """Unpack the files of a local image into the new folder ``target``.

    As root, files keep their owners; another user becomes the owner of all of them, as a box without root needs it.

    Raises: ImageNotFound, ImageBuildError, SandboxUnavailable (no Docker daemon).
    """
    client = docker_daemon.connect(timeout_s=_IMPORT_TIMEOUT_S)
    with _new_folder(target) as unfinished, _stopped_container(client, image) as container_id:
        _unpack(client.api.export(container_id), unfinished)
        (unfinished / ".dockerenv").unlink(missing_ok=True)


def exists(client: DockerClient, image: str) -> bool:
    """Whether the daemon has ``image``."""
    from docker.errors import ImageNotFound as NoSuchImage

    try:
        client.api.inspect_image(image)
    except NoSuchImage:
        return False
    return True


def prune_images(client: DockerClient, *, include_current: bool) -> list[str]:
    """Remove images of this module that lost their tag (or all of them) and return their names.

    Raises: SandboxError where one is in use.
    """
    from docker.errors import APIError

    removed = []
    for image in client.images.list(all=False, filters={"label": IMAGE_LABEL}):
        if image.tags and not include_current:
            continue
        try:
            client.api.remove_image(str(image.id), force=True)
        except APIError as error:
            raise SandboxError(f"image {image.short_id} was not removed: {docker_daemon.reason(error)}") from error
        removed.append(image.tags[0] if image.tags else image.short_id)
    return removed


def _make_root_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)  # it becomes the "/" of boxes, whatever the umask here


def _import(client: DockerClient, recipe: Recipe, root: Path, report: Report) -> None:
    from docker.errors import APIError

    report(f"importing {recipe.image} into Docker")
    machine = client.version()["Arch"]
    runner = root / RUNNER.lstrip("/")
    runner.unlink(missing_ok=True)
    shutil.copyfile(runner_path(machine), runner)
    runner.chmod(RUNNER_MODE)
    changes = [*_CHANGES, f"LABEL {IMAGE_LABEL}={recipe.tag} {RUNNER_LABEL}={runner_digest(machine)}"]
    with subprocess.Popen(["tar", "-C", str(root), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as packing:
        try:
            client.api.import_image(
                src=packing.stdout, repository=REPOSITORY, tag=recipe.tag, changes=changes, stream_src=True
            )
        except APIError as error:
            raise ImageBuildError(f"Docker refused {recipe.image}: {docker_daemon.reason(error)}") from error
    if packing.returncode != 0:
        raise ImageBuildError(f"tar could not read all of {root} (exit code {packing.returncode}); see its words above")


def _unpack(chunks: Iterator[bytes], target: Path) -> None:
    with subprocess.Popen(["tar", "-C", str(target), "--numeric-owner", "-x"], stdin=subprocess.PIPE) as unpacking:
        files: IO[bytes] | None = unpacking.stdin
        assert files is not None
        for chunk in chunks:
            files.write(chunk)
    if unpacking.returncode != 0:
        raise ImageBuildError(f"tar could not write all files below {target}; see its words above")


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that takes its name at the end, or vanishes with what went wrong."""
    if target.exists():
        raise ImageUnbuildable(f"{target} exists already: remove it, or name a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        _make_root_folder(unfinished)
        yield unfinished
        unfinished.rename(target)
    except BaseException:
        remove_folder(unfinished)
        raise


@contextmanager
def _stopped_container(client: DockerClient, image: str) -> Iterator[str]:
    """A container of ``image`` that never runs."""
    from docker.errors import ImageNotFound as NoSuchImage

    labels = container_labels(f"export-{uuid.uuid4().hex[:12]}", {})
    try:
        container: dict[str, Any] = client.api.create_container(image, command=["true"], labels=labels)
    except NoSuchImage as error:
        raise ImageNotFound(f"no image {image} here: see `python -m sandboxes.images list`") from error
    try:
        yield container["Id"]
    finally:
        client.api.remove_container(container["Id"], v=True, force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 2 where something is missing or wrong here, 1 where a build failed."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except SandboxError as error:
        _progress(str(error))
        return 2 if isinstance(error, (ImageUnbuildable, SandboxUnavailable)) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sandboxes.images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make the images that are missing")
    build.add_argument("recipes", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; none: all")
    build.add_argument("--root", type=Path, metavar="DIR", help="make this folder instead of a Docker image")
    build.add_argument("--mirror", metavar="URL", help="the Debian mirror (default: the one that apt uses here)")
    build.add_argument("--force", action="store_true", help="build again what exists")
    build.set_defaults(run=_run_build)
    export = commands.add_parser("export", help="unpack a local image into a new folder")
    export.add_argument("image", metavar="IMAGE")
    export.add_argument("target", type=Path, metavar="DIR")
    export.set_defaults(run=_run_export)
    commands.add_parser("list", help="what is built").set_defaults(run=_run_list)
    prune = commands.add_parser("prune", help="remove images that a newer build replaced")
    prune.add_argument("--all", action="store_true", help="remove the current ones too")
    prune.set_defaults(run=_run_prune)
    return parser


def _run_build(options: argparse.Namespace) -> None:
    unknown = [name for name in options.recipes if name not in RECIPES]
    if unknown:
        raise ImageUnbuildable(f"no recipe is called {unknown[0]}; there are {', '.join(RECIPES)}")
    recipes = [RECIPES[name] for name in options.recipes or RECIPES]
    if options.root is None:
        _build_images(recipes, options.mirror, force=options.force)
    elif len(recipes) == 1:
        build_root(recipes[0], options.root, _progress, mirror=options.mirror)
        _progress(f"{options.root} is ready")
    else:
        raise ImageUnbuildable(f"--root makes one folder: name one of {', '.join(RECIPES)}")


def _build_images(recipes: Sequence[Recipe], mirror: str | None, *, force: bool) -> None:
    client = docker_daemon.connect()
    for number, recipe in enumerate(recipes, 1):
        step = f"[{number}/{len(recipes)}]"
        if force or not exists(client, recipe.image):
            _progress(f"{step} {recipe.image}: {recipe.contents}")
            build_image(recipe, _progress, mirror=mirror)
        elif not has_current_runner(client, recipe.image):
            _progress(f"{step} {recipe.image} exists and gets the current runner")
            renew_runner(recipe, _progress)
        else:
            _progress(f"{step} {recipe.image} exists (--force builds it again)")
            continue
        _progress(f"{step} {recipe.image} is ready")


def _run_export(options: argparse.Namespace) -> None:
    export_image(options.image, options.target)
    _progress(f"{options.target} holds the files of {options.image}")


def _run_list(_options: argparse.Namespace) -> None:
    client = docker_daemon.connect()
    for recipe in RECIPES.values():
        state = "not built"
        if exists(client, recipe.image):
            facts = client.api.inspect_image(recipe.image)
            state = f"{facts['Size'] / 1e6:.0f} MB, made {facts['Created'][:19]}"
        sys.stdout.write(f"{recipe.image:26} {state:40} {recipe.contents}\n")


def _run_prune(options: argparse.Namespace) -> None:
    removed = prune_images(docker_daemon.connect(), include_current=options.all)
    _progress(f"removed {', '.join(removed)}" if removed else "nothing to remove")


def _progress(text: str) -> None:
    sys.stderr.write(f"images: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
