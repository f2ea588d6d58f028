"""Build the runner for each architecture: ``python -m sandboxes.runner.build`` (needs ``pip install ziglang``).

The compiler comes from PyPI and brings its own C library, so the same version gives the same bytes on any machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path

from sandboxes.runner import BINARIES

ZIGLANG = "0.17.1"
ARCHITECTURES = ("x86_64", "aarch64")
CHECKSUMS = BINARIES / "SHA256SUMS"
_SOURCES = Path(__file__).parent / "src"
_FLAGS = ("-Os", "-static", "-s", "-std=gnu11", "-Wall", "-Wextra", "-Werror")

logger = logging.getLogger(__name__)


def build(architecture: str, target: Path) -> None:
    """Compile the runner. Raises: subprocess.CalledProcessError, FileNotFoundError."""
    unfinished = target.with_suffix(".new")
    sources = sorted(path.name for path in _SOURCES.glob("*.c"))
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl"]
    # Relative names, so that no path of this machine gets into the binary.
    subprocess.run([*compiler, *_FLAGS, "-o", str(unfinished.resolve()), *sources], cwd=_SOURCES, check=True)
    unfinished.replace(target)  # the old one may be running


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_checksum() -> str:
    """SHA-256 over all sources, so that a test sees where binaries are older than they."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def read_checksums() -> dict[str, str]:
    """The committed checksums: name of a binary, or ``sources``, to SHA-256."""
    lines = CHECKSUMS.read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def main() -> None:
    """Build all binaries and write their checksums."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    installed = importlib.metadata.version("ziglang")
    if installed != ZIGLANG:
        raise SystemExit(f"the binaries are built with ziglang {ZIGLANG}, but {installed} is installed")
    BINARIES.mkdir(exist_ok=True)
    sums = {"sources": source_checksum()}
    for architecture in ARCHITECTURES:
        binary = BINARIES / f"runner-{architecture}"
        build(architecture, binary)
        binary.chmod(0o755)
        sums[binary.name] = checksum(binary)
        logger.info("%s: %d bytes", binary, binary.stat().st_size)
    CHECKSUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


if __name__ == "__main__":
    main()
