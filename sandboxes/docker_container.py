"""One container, step by step: created, given its runner, started, removed for certain. Every method blocks.

What holds for each: nothing of the host is inside, no network unless the spec asks for it, no capability but those
with which the runner starts commands as other users and gives them files, no way to gain more, and limits on memory
(with no swap), processes, CPU time and the folders that the box's user can write to.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sandboxes import docker_daemon
from sandboxes.base import SandboxSpec
from sandboxes.docker_daemon import explained
from sandboxes.errors import SandboxError
from sandboxes.image_store import Image
from sandboxes.ownership import container_labels
from sandboxes.processor import ProcessorShare
from sandboxes.rootfs import AGENT_HOME, AGENT_UID
from sandboxes.runner_file import RUNNER, runner_archive, runner_digest

if TYPE_CHECKING:
    from docker import DockerClient

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")

_RUNNER_PIDS = 32
"""Room for the runner and its supervisor of each command, besides the processes of the spec."""
_MIB = 1 << 20
_SMALL_TMPFS_MB = 16
_REMOVAL_TIMEOUT_S = 30.0
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_FINAL_STATE_TIMEOUT_S = 2.0
_GO_FOLDER_BIT = 1 << 31

_filled_workdirs: dict[tuple[str, str], bool] = {}
"""Whether an image (by id) has files of its own in a working folder; it is looked at once."""


class Container:
    """The container of one box, known by its name from before it exists."""

    def __init__(self, client: DockerClient, box_id: str, spec: SandboxSpec) -> None:
        self.name = f"hermes-{box_id}"
        self.keeps_workdir_of_image = False
        """Whether the working folder is the image's own, with its files, instead of a new one in memory."""
        self._client = client
        self._box_id = box_id
        self._spec = spec
        self._network = "bridge" if spec.network == "bridge" else "none"  # listed hosts are reached without a network

    def create(self, image: Image) -> None:
        """Create it, with the runner inside. Raises: SandboxStartError, SandboxUnavailable."""
        runner = runner_archive(image.architecture)
        self._create(image)
        if self._has_files_in_workdir(image):
            self.remove()
            self.keeps_workdir_of_image = True
            self._create(image)
        if image.runner_digest == runner_digest(image.architecture):
            return
        with explained(f"the runner could not be put into a container of {image.name}"):
            self._client.api.put_archive(self.name, "/", runner)

    def start(self) -> None:
        """Raises: SandboxStartError."""
        with explained("the container did not start"):
            self._client.api.start(self.name)

    def remove(self) -> None:
        """Kill and remove it with its volumes, and see that it is gone. Harmless where there is none.

        Raises: SandboxError where it is still there after ``_REMOVAL_TIMEOUT_S``.
        """
        remove_container(self._client, self.name)

    def why_ended(self) -> str:
        """In words, once its output has ended."""
        state = self._final_state()
        if isinstance(state, str):
            return state
        if state["Running"]:
            return "the Docker daemon closed the connection to the container"
        memory = f", after it had run out of memory (memory_mb={self._spec.memory_mb})" if state["OOMKilled"] else ""
        error = f": {state['Error']}" if state["Error"] else ""
        return f"the container ended with exit code {state['ExitCode']}{memory}{error}"

    def _create(self, image: Image) -> None:
        with explained(f"no container of {image.name} could be created"):
            self._client.api.create_container(
                image.id,
                name=self.name,
                entrypoint=[RUNNER],
                user="0:0",
                working_dir="/",
                hostname="sandbox",
                stdin_open=True,
                healthcheck={"test": ["NONE"]},  # one that the image brings would run as root beside the commands
                network_disabled=self._network == "none",
                labels=container_labels(self._box_id, self._spec.labels, lease_s=self._spec.lease_s),
                host_config=self._client.api.create_host_config(**self._limits()),
            )

    def _limits(self) -> dict[str, Any]:
        from docker.types import LogConfig, Ulimit

        spec = self._spec
        file_limit = (spec.disk_mb + 1) * _MIB
        memory = (spec.memory_mb + spec.disk_mb) * _MIB  # files in memory are counted with it
        processor = ProcessorShare.of(spec.cpus)
        return {
            "network_mode": self._network,
            "cap_drop": ["ALL"],
            "cap_add": list(CAPABILITIES),
            "security_opt": ["no-new-privileges"],
            "pids_limit": spec.pids + _RUNNER_PIDS,
            "mem_limit": memory,
            "memswap_limit": memory,
            "cpu_period": processor.period_us,
            "cpu_quota": processor.quota_us,
            "cpu_shares": processor.shares,
            "tmpfs": self._tmpfs(),
            "ulimits": [
                Ulimit(name="core", soft=0, hard=0),
                Ulimit(name="fsize", soft=file_limit, hard=file_limit),
            ],
            "log_config": LogConfig(type="none"),
        }

    def _tmpfs(self) -> dict[str, str]:
        """Folders in memory over those of a usual image that its user may write to."""
        disk_mb = self._spec.disk_mb
        small_mb = min(disk_mb, _SMALL_TMPFS_MB)
        folders = {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={disk_mb}m",
            "/var/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={small_mb}m",
            "/run": f"rw,noexec,nosuid,nodev,mode=755,size={small_mb}m",
            AGENT_HOME: f"rw,exec,nosuid,nodev,mode=755,uid={AGENT_UID},gid={AGENT_UID},size={disk_mb}m",
        }
        if not self.keeps_workdir_of_image:
            folders[self._spec.workdir] = f"rw,exec,nosuid,nodev,mode=755,size={disk_mb}m"
        return folders

    def _has_files_in_workdir(self, image: Image) -> bool:
        key = (image.id, self._spec.workdir)
        if key not in _filled_workdirs:
            with explained(f"the folder {self._spec.workdir} of {image.name} could not be looked at"):
                _filled_workdirs[key] = _has_files(self._client, self.name, self._spec.workdir)
        return _filled_workdirs[key]

    def _final_state(self) -> dict[str, Any] | str:
        from docker.errors import DockerException, NotFound
        from requests.exceptions import RequestException

        deadline = time.monotonic() + _FINAL_STATE_TIMEOUT_S
        try:
            # Docker ends the output a moment before it writes down how the container ended.
            while (state := self._client.api.inspect_container(self.name)["State"])["Running"]:
                if time.monotonic() > deadline:
                    break
                time.sleep(_PAUSE_S)
        except NotFound:
            return "the container was removed from outside"
        except (DockerException, RequestException) as error:
            return docker_daemon.reason(error)
        return dict(state)


def remove_container(client: DockerClient, name: str) -> None:
    """Kill and remove a container with its volumes, and see that it is gone. Harmless where there is none.

    Raises: SandboxError where it is still there after ``_REMOVAL_TIMEOUT_S``.
    """
    from docker.errors import DockerException, NotFound
    from requests.exceptions import RequestException

    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    pause = _PAUSE_S
    answer = "it was still there after each removal"
    while time.monotonic() < deadline:
        try:
            client.api.remove_container(name, v=True, force=True)
            continue  # to be told that there is none
        except NotFound:
            return
        except (DockerException, RequestException) as error:
            answer = docker_daemon.reason(error)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    raise SandboxError(
        f"container {name} was not removed: {answer}. Once this process has ended, `python -m sandboxes.reaper` does it"
    )


def _has_files(client: DockerClient, container: str, folder: str) -> bool:
    """Whether ``folder`` of the image has anything in it; a folder that is a link counts as filled."""
    from docker.errors import NotFound

    try:
        chunks, facts = client.api.get_archive(container, folder, chunk_size=tarfile.BLOCKSIZE)
    except NotFound:
        return False
    if not facts["mode"] & _GO_FOLDER_BIT:
        return True
    second_header = _first_bytes(chunks, 2 * tarfile.BLOCKSIZE)[tarfile.BLOCKSIZE :]
    return any(second_header)


def _first_bytes(chunks: Iterator[bytes], count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := next(chunks, b"")):
        data += chunk
    return data[:count]
