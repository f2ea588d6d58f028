"""Boxes of Linux namespaces: no daemon, some milliseconds to open, nothing left when they close.

A box has namespaces of its own for users, mounts, processes, network (a loopback interface and nothing else), IPC and
names. Its root is the image folder of ``spec.root`` under a layer that vanishes, or, without one, the read-only
system folders that ``namespaces.host_root`` lists. All that it writes is in memory, ``disk_mb`` at most. It has no
capability that reaches outside, cannot gain any, and a seccomp filter closes what namespaces leave open.

Who is who. Started by root, the box has 65,536 ids of its own, which belong to nobody on the machine: commands run as
``agent`` (1000), ``user="root"`` is the root of the box, whom the agent cannot touch. Started by anyone else, the box
has one id, which is that user outside and ``agent`` inside; a ``user`` of a call changes nothing then.

Which program makes it, the project's runner or bubblewrap itself, is found out by trying (``namespaces.makers``).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import uuid
from dataclasses import replace
from typing import ClassVar

from sandboxes.allow_list import open_hosts
from sandboxes.base import SandboxSpec
from sandboxes.errors import SandboxStartError, SandboxUnavailable
from sandboxes.launch import Launched, launch
from sandboxes.namespaces.host_root import host_root, image_root
from sandboxes.namespaces.limits import Limits, prepare_limits
from sandboxes.namespaces.makers import BWRAP, Maker, find_maker, free_ids
from sandboxes.namespaces.plan import USER_ID, Plan
from sandboxes.namespaces.toolchain import toolchain
from sandboxes.ownership import owned_name
from sandboxes.processor import cores_of
from sandboxes.runner_sandbox import BASE_ENVIRONMENT, RunnerSandbox, finish

logger = logging.getLogger(__name__)

_MIB = 1 << 20


_SHARED_IDS = "pids not for root of the box, and counted together in all boxes"
"""bwrap gives the boxes that root makes the ids of the machine, by which the kernel counts processes."""


def check() -> None:
    """Raises: SandboxUnavailable, which says why this machine cannot make a box and what to change."""
    find_maker()


async def start(spec: SandboxSpec, *, maker: Maker | None = None) -> BubblewrapSandbox:
    """Start a box; ``maker`` None is the program that ``find_maker`` finds.

    Raises: SandboxUnavailable, SandboxStartError.
    """
    if maker is None:
        maker = await asyncio.to_thread(find_maker)
    _refuse_what_it_cannot(spec, maker)
    box_id = f"bubblewrap-{uuid.uuid4().hex[:12]}"
    preparing = asyncio.create_task(asyncio.to_thread(_prepare, spec, box_id), name=f"prepare {box_id}")
    try:
        await finish(preparing)
        limits, plan = preparing.result()
        user = _default_user(spec, plan, maker)
        with maker.program(plan) as program:
            launched = await launch(program)
    except BaseException:
        if preparing.exception() is None:
            await asyncio.to_thread(preparing.result()[0].remove)
        raise
    if maker is BWRAP and user is not None and not limits.cgroups:
        limits = replace(limits, description=f"{limits.description}; {_SHARED_IDS}")
    box = BubblewrapSandbox(box_id, spec, launched, limits, user)
    try:
        launched.channel.keep_to_cores(*cores_of(spec.cpus))
        await _make_ready(box, launched, maker)
        await open_hosts(box)
    except BaseException:
        await box.close()
        raise
    _say_once(maker.name, limits.description)
    return box


class BubblewrapSandbox(RunnerSandbox):
    """A box of namespaces. ``limits`` says what bounds it."""

    backend: ClassVar[str] = "bubblewrap"

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, launched: Launched, limits: Limits, user: str | None
    ) -> None:
        environment = dict(BASE_ENVIRONMENT)
        if spec.root is None:
            tools = toolchain()
            environment |= {"PATH": ":".join([*tools.search_path, environment["PATH"]]), **tools.environment}
        super().__init__(sandbox_id, spec, launched.channel, user=user, environment=environment)
        self.limits = limits.description
        self._launched = launched
        self._remove_limits = limits.remove

    async def give_folders(self) -> None:
        """Give the user's folders to the user."""
        for step in host_root(self.spec.workdir):
            if step.word == "own":
                await self._give_folder(*step.operands)

    async def _stop(self) -> None:
        await self._launched.end()
        await asyncio.to_thread(self._remove_limits)


async def _make_ready(box: BubblewrapSandbox, launched: Launched, maker: Maker) -> None:
    hello = launched.channel.hello
    if hello is None or hello.pid != 1:
        raise SandboxStartError("the runner is not the first process of its box, so nothing is run in it")
    await box.check_user()
    if not maker.gives_folders:
        await box.give_folders()


def _refuse_what_it_cannot(spec: SandboxSpec, maker: Maker) -> None:
    if spec.image is not None:
        raise SandboxUnavailable(f"bubblewrap boxes have no images, but {spec.image} was asked for; use docker")
    if spec.build is not None:
        raise SandboxUnavailable(f"bubblewrap boxes have no images, but {spec.build} was to be built; use docker")
    if spec.network == "bridge":
        raise SandboxUnavailable(
            "bubblewrap boxes have no network of the machine; use docker, or list the hosts that a box may reach"
        )
    if spec.root is not None and not maker.takes_image:
        raise SandboxUnavailable(f"{maker.name} cannot put a writable layer over spec.root, and no other program works")
    if spec.root is not None and not (spec.root / "bin").exists():
        raise SandboxUnavailable(f"{spec.root} is no unpacked root file system: it has no bin")


def _prepare(spec: SandboxSpec, box_id: str) -> tuple[Limits, Plan]:
    limits = prepare_limits(spec, owned_name(box_id, lease_s=spec.lease_s))
    try:
        return limits, _plan(spec, limits)
    except BaseException:
        limits.remove()
        raise


def _plan(spec: SandboxSpec, limits: Limits) -> Plan:
    return Plan(
        steps=host_root(spec.workdir) if spec.root is None else image_root(spec.workdir),
        owner=os.getpid(),
        disk_bytes=spec.disk_mb * _MIB,
        ids=free_ids(),
        image=None if spec.root is None else spec.root.resolve(),
        cgroups=limits.cgroups,
        rlimits=limits.rlimits,
    )


def _default_user(spec: SandboxSpec, plan: Plan, maker: Maker) -> str | None:
    """None where the box has a single id. bwrap started by root keeps the ids of the machine.

    Raises: SandboxUnavailable where that is not the user of the spec.
    """
    many_ids = os.geteuid() == 0 if maker is BWRAP else plan.ids is not None
    if many_ids:
        return spec.user or ("agent" if spec.root is None else str(USER_ID))
    if spec.user is not None:
        raise SandboxUnavailable(
            f"the user {spec.user!r} was asked for, but the boxes that {maker.name} makes here have a single user; "
            "start them as root, or leave SandboxSpec.user out"
        )
    return None


@functools.cache
def _say_once(maker: str, limits: str) -> None:
    logger.info("boxes are made by %s; limits: %s", maker, limits)
