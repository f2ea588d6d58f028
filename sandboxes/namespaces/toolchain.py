"""pytest for boxes whose Python is that of the machine.

Environments grade with pytest, and the Python of a system often has none. Where that is so and the Python that runs
this program has it, its few pure-Python packages are shown to the box, read-only.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec

from sandboxes.namespaces.plan import Step, bind, file, program

logger = logging.getLogger(__name__)

_MODULES = ("_pytest", "pytest", "py", "iniconfig", "packaging", "pluggy", "pygments")
_OLDEST = (3, 10)
_LIBRARY = "/opt/tools/lib"
_BIN = "/opt/tools/bin"
_SCRIPT = f'#!{{python}}\nimport sys\nsys.path.append("{_LIBRARY}")\nfrom pytest import main\nsys.exit(main())\n'
_PROBE = "import sys, importlib.util as u; print(*sys.version_info[:2], int(u.find_spec('pytest') is not None))"


@dataclass(frozen=True)
class Toolchain:
    """What is added to a box: steps of its plan, folders to search for programs, variables."""

    steps: tuple[Step, ...] = ()
    search_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Python:
    path: str
    version: tuple[int, int]
    has_pytest: bool


@functools.cache
def toolchain() -> Toolchain:
    """What the boxes of this machine lack; looked up once, since it asks another Python."""
    python = _system_python()
    if python is None or python.has_pytest or python.version < _OLDEST:
        return Toolchain()
    modules = _own_modules()
    if modules is None:
        logger.info("boxes without an image have no pytest: neither %s nor this Python has it", python.path)
        return Toolchain()
    steps = [bind(path, f"{_LIBRARY}/{os.path.basename(path)}") for path in modules]
    steps += program(f"{_BIN}/pytest", _SCRIPT.format(python=python.path))
    return _importable(python, steps)


def _importable(python: _Python, steps: list[Step]) -> Toolchain:
    """Debian has its site customization in /etc, which is the box's own and counts in isolated mode too."""
    customization = "/etc/python{}.{}/sitecustomize.py".format(*python.version)
    link = "/usr/lib/python{}.{}/sitecustomize.py".format(*python.version)
    if os.path.realpath(link) == customization:
        text = f'import sys\nsys.path.append("{_LIBRARY}")\n'
        return Toolchain((*steps, file(customization, text)), (_BIN,))
    return Toolchain(tuple(steps), (_BIN,), {"PYTHONPATH": _LIBRARY})


def _system_python() -> _Python | None:
    path = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if path is None:
        return None
    answer = subprocess.run([path, "-I", "-c", _PROBE], env={}, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        logger.warning("%s does not run: %s", path, answer.stderr.strip())
        return None
    major, minor, has_pytest = map(int, answer.stdout.split())
    return _Python(path, (major, minor), bool(has_pytest))


def _own_modules() -> list[str] | None:
    """The folder or file of pytest and of each module it needs, as this Python has them."""
    specs = [importlib.util.find_spec(name) for name in _MODULES]
    paths = [_path_of(spec) for spec in specs if spec is not None]
    found = [path for path in paths if path is not None]
    return found if len(found) == len(_MODULES) else None


def _path_of(spec: ModuleSpec) -> str | None:
    return spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin
