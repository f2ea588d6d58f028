"""What the benchmarks of boxes are measured beside: containers run by the ``docker`` command line."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator

RUN = ("run", "-d", "--network", "none", "--label", "hermes.benchmark=1", "--entrypoint", "sleep")
LIFETIME_S = "900"


async def docker(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Run the command and return its output. Raises: RuntimeError where it fails."""
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate(stdin)
    if process.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)} failed")
    return out


async def run(image: str) -> str:
    """Start a container that waits, and return its id."""
    return (await docker(*RUN, image, LIFETIME_S)).decode().strip()


async def execute(container: str, command: str, stdin: bytes | None = None) -> bytes:
    """One ``docker exec``."""
    flags = [] if stdin is None else ["-i"]
    return await docker("exec", *flags, container, "sh", "-c", command, stdin=stdin)


async def remove(container: str) -> None:
    await docker("rm", "-f", "-v", container)


@contextlib.asynccontextmanager
async def container_of(image: str) -> AsyncIterator[str]:
    """A container for the length of the block."""
    container = await run(image)
    try:
        yield container
    finally:
        await remove(container)
