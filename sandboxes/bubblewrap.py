"""Boxes of Linux namespaces: no daemon, some milliseconds to open, nothing left when they close.

A box has namespaces of its own for users, mounts, processes, network (a loopback interface and nothing else), IPC and
names. Its root is the image folder of ``spec.root`` under a layer that vanishes, or, without one, the read-only
system folders that ``namespaces.host_root`` lists. All that it writes is in memory, ``disk_mb`` at most. It has no
capability that reaches outside, cannot gain any, and a seccomp filter closes what namespaces leave open.

Who is who. Started by root, the box has 65,536 ids of its own, which belong to nobody on the machine: commands run as
``agent`` (1000), ``user="root"`` is the root of the box, whom the agent cannot touch. Started by anyone else, the box
has one id, which is that user outside and ``agent`` inside; a ``user`` of a call changes nothing then.

Two programs can make such a box: the project's own runner, and bubblewrap (``bwrap``). The runner comes first: it can
give a box many ids and an image, and is quicker. bwrap is for kernels that let only programs they know make user
namespaces.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import platform
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, Literal

from sandboxes.base import SandboxSpec
from sandboxes.errors import SandboxStartError, SandboxUnavailable
from sandboxes.frames import FrameBuffer, decode_hello
from sandboxes.launch import Launched, Program, launch
from sandboxes.namespaces.diagnosis import explain
from sandboxes.namespaces.host_root import host_root, image_root
from sandboxes.namespaces.limits import Limits, prepare_limits
from sandboxes.namespaces.plan import USER_ID, Plan, bwrap_arguments, encode
from sandboxes.namespaces.seccomp import seccomp_filter
from sandboxes.namespaces.toolchain import toolchain
from sandboxes.ownership import owned_name
from sandboxes.runner import runner_path
from sandboxes.runner_sandbox import BASE_ENVIRONMENT, RunnerSandbox, finish

logger = logging.getLogger(__name__)

Maker = Literal["runner", "bwrap"]

_MIB = 1 << 20
_PROBE_S = 20.0
_FIRST_ID, _ID_RANGES = 2_000_000_000, 2000  # above what accounts and containers are given, below 2**31
_IDS = 65536


def check() -> None:
    """Raises: SandboxUnavailable, which says why this machine cannot make a box and what to change."""
    find_maker()


async def start(spec: SandboxSpec, *, maker: Maker | None = None) -> BubblewrapSandbox:
    """Start a box; ``maker`` None is the program that ``find_maker`` finds.

    Raises: SandboxUnavailable, SandboxStartError.
    """
    maker = maker or await _find_maker()
    _refuse_what_it_cannot(spec, maker)
    box_id = f"bubblewrap-{uuid.uuid4().hex[:12]}"
    preparing = asyncio.create_task(asyncio.to_thread(_prepare, spec, box_id))
    try:
        await finish(preparing)
        limits, plan = preparing.result()
        with _program(plan, maker) as program:
            launched = await launch(program)
    except BaseException:
        if preparing.exception() is None:
            await asyncio.to_thread(preparing.result()[0].remove)
        raise
    _say_once(maker, limits.description)
    if launched.channel.hello is None or launched.channel.hello.pid != 1:
        await launched.end()
        raise SandboxStartError("the runner is not the first process of its box, so nothing is run in it")
    box = BubblewrapSandbox(box_id, spec, launched, limits, _default_user(spec, plan, maker))
    if maker == "bwrap":
        await box.give_folders()
    return box


class BubblewrapSandbox(RunnerSandbox):
    """A box of namespaces. ``limits`` says what bounds it."""

    backend: ClassVar[str] = "bubblewrap"

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, launched: Launched, limits: Limits, user: str | None
    ) -> None:
        tools = toolchain() if spec.root is None else None
        environment = dict(BASE_ENVIRONMENT)
        if tools is not None:
            environment |= {"PATH": ":".join([*tools.search_path, environment["PATH"]]), **tools.environment}
        super().__init__(sandbox_id, spec, launched.channel, user=user, environment=environment)
        self.limits = limits.description
        self._launched = launched
        self._remove_limits = limits.remove

    async def give_folders(self) -> None:
        """Give the user's folders to the user, which bwrap cannot where there are several."""
        try:
            for step in host_root(self.spec.workdir):
                if step.word == "own":
                    await self._give_folder(*step.operands)
        except BaseException:
            await self.close()
            raise

    async def _stop(self) -> None:
        await self._launched.end()
        await asyncio.to_thread(self._remove_limits)


# ---- which program makes a box


async def _find_maker() -> Maker:
    return await asyncio.to_thread(find_maker)


@functools.cache
def find_maker() -> Maker:
    """The first program that makes a box on this machine; tried by making one.

    Raises: SandboxUnavailable.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"bubblewrap boxes need Linux, this is {sys.platform}; use docker")
    runner_path(platform.machine())
    seccomp_filter()
    failures: dict[str, str] = {}
    makers: tuple[Maker, ...] = ("runner", "bwrap")
    for maker in makers:
        problem = try_maker(maker)
        if problem is None:
            return maker
        failures[maker] = problem
    raise SandboxUnavailable(explain(failures))


def try_maker(maker: Maker) -> str | None:
    """Make a box and leave it at once; what was wrong, or None."""
    if maker == "bwrap" and shutil.which("bwrap") is None:
        return "not installed (apt install bubblewrap)"
    plan = Plan(steps=(*host_root("/workspace"),), owner=os.getpid(), disk_bytes=_MIB, ids=_free_ids())
    with _program(plan, maker) as program:
        try:
            done = subprocess.run(
                program.argv,
                executable=program.executable,
                pass_fds=program.descriptors,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
                env={},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    hellos = list(FrameBuffer().feed(done.stdout))
    if hellos and decode_hello(hellos[0].payload).pid == 1:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"ended with {done.returncode}"


@functools.cache
def _say_once(maker: Maker, limits: str) -> None:
    logger.info("boxes are made by %s; limits: %s", maker, limits)


def _refuse_what_it_cannot(spec: SandboxSpec, maker: Maker) -> None:
    if spec.image is not None:
        raise SandboxUnavailable(
            f"bubblewrap boxes have no images, but {spec.image} was asked for; use docker or spec.root"
        )
    if spec.network != "none":
        raise SandboxUnavailable("bubblewrap boxes have no network; use docker")
    if spec.root is not None and maker == "bwrap":
        raise SandboxUnavailable("bwrap cannot put a writable layer over spec.root, and the runner makes no boxes here")
    if spec.root is not None and not (spec.root / "bin").exists():
        raise SandboxUnavailable(f"{spec.root} is no unpacked root file system: it has no bin")


# ---- the plan


def _prepare(spec: SandboxSpec, box_id: str) -> tuple[Limits, Plan]:
    limits = prepare_limits(spec, owned_name(box_id))
    try:
        return limits, _plan(spec, limits)
    except BaseException:
        limits.remove()
        raise


def _plan(spec: SandboxSpec, limits: Limits) -> Plan:
    steps = host_root(spec.workdir) if spec.root is None else image_root(spec.workdir)
    return Plan(
        steps=steps,
        owner=os.getpid(),
        disk_bytes=spec.disk_mb * _MIB,
        ids=_free_ids(),
        image=None if spec.root is None else spec.root.resolve(),
        cgroups=limits.cgroups,
        rlimits=limits.rlimits,
    )


def _free_ids() -> int | None:
    """The first of some ids that are nobody's, or None where this process may not give ids away."""
    if os.geteuid() != 0:
        return None
    first = _FIRST_ID + _IDS * random.randrange(_ID_RANGES)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= first and first + _IDS <= inside + count:
            return first
    return None


def _default_user(spec: SandboxSpec, plan: Plan, maker: Maker) -> str | None:
    many_ids = plan.ids is not None if maker == "runner" else os.geteuid() == 0
    if not many_ids:
        return None
    return spec.user or (str(USER_ID) if spec.root else "agent")


@contextmanager
def _program(plan: Plan, maker: Maker) -> Iterator[Program]:
    """How to start the box of a plan. The descriptors are open inside the block."""
    with ExitStack() as opened:
        descriptors: list[int] = []

        def open_bytes(content: bytes) -> int:
            file = opened.enter_context(os.fdopen(os.memfd_create("sandbox"), "w+b"))
            file.write(content)
            file.seek(0)
            descriptors.append(file.fileno())
            return file.fileno()

        runner = runner_path(platform.machine())
        seccomp = open_bytes(seccomp_filter())
        if maker == "runner":
            words = plan.words(seccomp)
        else:
            arguments = bwrap_arguments(
                plan,
                bwrap=shutil.which("bwrap") or "bwrap",
                runner=runner,
                seccomp=seccomp,
                root=os.geteuid() == 0,
                open_text=lambda text: open_bytes(text.encode()),
            )
            words = [*plan.guard_words(), "exec", *arguments]
        described = open_bytes(encode(words))
        yield Program(("sandbox", "plan", str(described)), str(runner), tuple(descriptors))
