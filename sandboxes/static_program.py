"""Programs in C that go into boxes: one static binary per architecture, committed, and how they are made.

The compiler comes from PyPI (``pip install ziglang``) and brings its own C library, so the same version gives the same
bytes on any machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxUnavailable

ZIGLANG = "0.17.1"
ARCHITECTURES = ("x86_64", "aarch64")
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}
_FLAGS = ("-Os", "-static", "-s", "-std=gnu11", "-Wall", "-Wextra", "-Werror")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StaticProgram:
    """``<folder>/bin/<name>-<architecture>``, made of ``<folder>/src``."""

    name: str
    folder: Path

    @property
    def binaries(self) -> Path:
        """The folder that the binaries are in, with their checksums."""
        return self.folder / "bin"

    def path(self, machine: str) -> Path:
        """The binary for a machine name as ``platform.machine()`` or Docker give it (``x86_64``, ``arm64``, …).

        Raises: SandboxUnavailable where there is none for that architecture.
        """
        architecture = _ALIASES.get(machine.lower(), machine.lower())
        path = self.binaries / f"{self.name}-{architecture}"
        if not path.is_file():
            there = ", ".join(sorted(each.name.removeprefix(f"{self.name}-") for each in self.binaries.glob("*-*")))
            raise SandboxUnavailable(
                f"no sandbox {self.name} for the architecture {machine!r} (there are: {there}); "
                f"add it to {Path(__file__).name} and run python -m sandboxes.{self.folder.name}.build"
            )
        return path

    def build(self, architecture: str, target: Path) -> None:
        """Compile it. Raises: subprocess.CalledProcessError, FileNotFoundError."""
        unfinished = target.with_suffix(".new")
        sources = sorted(path.name for path in self._sources.glob("*.c"))
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl"]
        # Relative names, so that no path of this machine gets into the binary.
        subprocess.run([*compiler, *_FLAGS, "-o", str(unfinished.resolve()), *sources], cwd=self._sources, check=True)
        unfinished.replace(target)  # the old one may be running

    def build_all(self) -> None:
        """Build the binaries of all architectures and write their checksums."""
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        installed = importlib.metadata.version("ziglang")
        if installed != ZIGLANG:
            raise SystemExit(f"the binaries are built with ziglang {ZIGLANG}, but {installed} is installed")
        self.binaries.mkdir(exist_ok=True)
        sums = {"sources": self.source_checksum()}
        for architecture in ARCHITECTURES:
            binary = self.binaries / f"{self.name}-{architecture}"
            self.build(architecture, binary)
            binary.chmod(0o755)
            sums[binary.name] = checksum(binary)
            logger.info("%s: %d bytes", binary, binary.stat().st_size)
        self._checksums.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))

    def source_checksum(self) -> str:
        """SHA-256 over all sources, so that a test sees where binaries are older than they."""
        digest = hashlib.sha256()
        for path in sorted(self._sources.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def read_checksums(self) -> dict[str, str]:
        """The committed checksums: name of a binary, or ``sources``, to SHA-256."""
        lines = self._checksums.read_text().splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}

    @property
    def _sources(self) -> Path:
        return self.folder / "src"

    @property
    def _checksums(self) -> Path:
        return self.binaries / "SHA256SUMS"


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
