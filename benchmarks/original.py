"""The original, ``atroposlib`` 0.4.0, in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "build" / "original" / "bin" / "python"


def original_python(python: Path = DEFAULT, *more: str) -> str:
    """Return the interpreter of a virtual environment with the original and ``more`` packages, made if it is absent."""
    python = python.absolute()
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "atroposlib==0.4.0", *more], check=True)
    return str(python)
