"""Build the relay for each architecture: ``python -m sandboxes.relay.build`` (needs ``pip install ziglang``)."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
from pathlib import Path

from sandboxes.relay.binary import BINARIES
from sandboxes.runner.build import ARCHITECTURES, checksum

SOURCE = Path(__file__).parent / "src" / "relay.c"
CHECKSUMS = BINARIES / "SHA256SUMS"
_FLAGS = ("-Os", "-static", "-s", "-std=gnu11", "-Wall", "-Wextra", "-Werror")

logger = logging.getLogger(__name__)


def build(architecture: str, target: Path) -> None:
    """Compile the relay. Raises: subprocess.CalledProcessError, FileNotFoundError."""
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl"]
    subprocess.run([*compiler, *_FLAGS, "-o", str(target.resolve()), SOURCE.name], cwd=SOURCE.parent, check=True)


def source_checksum() -> str:
    """SHA-256 of the source, so that a test sees where binaries are older than it."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def main() -> None:
    """Build all binaries and write their checksums."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    BINARIES.mkdir(exist_ok=True)
    sums = {"sources": source_checksum()}
    for architecture in ARCHITECTURES:
        binary = BINARIES / f"relay-{architecture}"
        build(architecture, binary)
        binary.chmod(0o755)
        sums[binary.name] = checksum(binary)
        logger.info("%s: %d bytes", binary, binary.stat().st_size)
    CHECKSUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


if __name__ == "__main__":
    main()
