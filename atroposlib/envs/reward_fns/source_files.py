"""Python files as modules, wherever they lie."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_name_of(path: Path) -> str:
    """Files of this package are its modules; others get a name of their own, the same in every process."""
    if path.parent == Path(__file__).parent:
        return f"{__package__}.{path.stem}"
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"atroposlib_reward_{digest}_{path.stem}"


def is_imported(path: Path) -> bool:
    """Whether ``import_file`` has imported it already."""
    return module_name_of(path) in sys.modules


def import_file(path: str | Path) -> ModuleType:
    """Import a file once. Whatever its code raises rises."""
    path = Path(path)
    name = module_name_of(path)
    if path.parent == Path(__file__).parent:
        return importlib.import_module(name)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
