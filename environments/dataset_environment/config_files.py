"""Configuration files of data set environments: found by name, and read in every shape that there is.

    env: {…}      openai: {…} or [{…}]      slurm, testing          as of every environment
    dataset: {…}  generation: {…}  reward_functions: […]            what a data set is made of
    any setting of the environment at the top; server_configs: […]  older files

Of a setting that stands twice the more special place counts: ``env`` before ``dataset``, ``generation`` and the top.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from atroposlib.envs.settings import read_yaml
from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig

Kind = Literal["envs", "agents"]
PACKAGE_CONFIGS = Path(__file__).parent / "configs"
SETTINGS = DatasetEnvConfig.model_fields.keys()
GENERATION = ("temperature", "top_p", "max_tokens", "min_tokens", "eval_temperature", "extra_body")
SAMPLING = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "seed")
"""What ``generation`` may say beyond: it goes to the engine as it is."""
SECTIONS = ("env", "openai", "slurm", "testing", "dataset", "generation", "server_configs")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


# names


def folders(kind: Kind) -> list[Path]:
    """Where configurations are looked up, in this order."""
    if kind == "agents":
        return [Path("configs/agents"), PACKAGE_CONFIGS / "agents"]
    return [Path("configs/envs"), Path("environments/dataset_environment/configs"), PACKAGE_CONFIGS]


def find_config(name: str, kind: Kind) -> Path:
    """The file that a name means; a path means itself. Raises: ConfigError, which lists the names there are."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"there is no configuration file {name!r} (looked in {Path.cwd()})")
    known = list_configs(kind)
    if name not in known:
        near = get_close_matches(name, known, n=2)
        hint = f" (is {' or '.join(near)} meant?)" if near else ""
        looked = ", ".join(str(folder) for folder in folders(kind))
        raise ConfigError(f"no configuration {name!r}{hint}. There are: {', '.join(known)} (looked in {looked})")
    return known[name]


def list_configs(kind: Kind) -> dict[str, Path]:
    """All names, sorted, each with its file; the first folder that has one wins."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in [*folder.glob("*.yaml"), *folder.glob("*.yml")]:
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


# shapes


def read_env_config(name: str) -> dict[str, Any]:
    """The sections ``env``, ``openai``, ``slurm`` and ``testing`` of a file, whatever its shape.

    Raises: ConfigError for a key that means nothing; it names file and key.
    """
    path = find_config(name, "envs")
    document = read_yaml(str(path))
    _check_keys(document, [*SECTIONS, *SETTINGS], path, "")
    env = {key: value for key, value in document.items() if key in SETTINGS}
    env |= _generation(document, path)
    env |= _section(document, "dataset", SETTINGS, path)
    env |= _section(document, "env", SETTINGS, path)
    sections: dict[str, Any] = {"env": _with_paths_of(path, env)}
    sections |= {key: document[key] for key in ("slurm", "testing") if key in document}
    servers = _servers(document, path)
    return sections | ({"openai": servers} if servers is not None else {})


def _generation(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    section = _section(document, "generation", [*GENERATION, *SAMPLING], path)
    passed_on = {key: section.pop(key) for key in SAMPLING if key in section}
    return section | ({"extra_body": passed_on | (section.get("extra_body") or {})} if passed_on else {})


def _section(document: Mapping[str, Any], name: str, known: Iterable[str], path: Path) -> dict[str, Any]:
    section = document.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path}: {name} must be a mapping, not a {type(section).__name__}")
    _check_keys(section, list(known), path, f"{name}.")
    return dict(section)


def _check_keys(section: Mapping[str, Any], known: list[str], path: Path, prefix: str) -> None:
    for key in section:
        if key not in known:
            near = get_close_matches(str(key), known, n=3, cutoff=0.5)
            hint = f" (is {' or '.join(near)} meant?)" if near else ""
            raise ConfigError(f"{path}: unknown key {prefix}{key}{hint}")


def _with_paths_of(path: Path, env: Mapping[str, Any]) -> dict[str, Any]:
    """A relative ``dataset_path`` that is not in the working folder is looked for beside the file that names it."""
    data = env.get("dataset_path")
    if isinstance(data, str) and not Path(data).exists() and (path.parent / data).exists():
        return {**env, "dataset_path": str((path.parent / data).resolve())}
    return dict(env)


def _servers(document: Mapping[str, Any], path: Path) -> Any:
    given = [name for name in ("openai", "server_configs") if document.get(name) is not None]
    if len(given) == 2:
        raise ConfigError(f"{path}: openai and server_configs are two names for the engines; keep one")
    return _expanded(document[given[0]], path, given[0]) if given else None


def _expanded(value: Any, path: Path, where: str) -> Any:
    """A copy with each ``${VARIABLE}`` replaced. Raises: ConfigError for one that is not set."""
    if isinstance(value, Mapping):
        return {key: _expanded(each, path, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, path, f"{where}[{index}]") for index, each in enumerate(value)]
    return expand_variables(value, f"{path}: {where}") if isinstance(value, str) else value


def expand_variables(text: str, where: str) -> str:
    """``text`` with each ``${VARIABLE}`` replaced. Raises: ConfigError for one that is not set."""

    def variable(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ConfigError(f"{where} names ${{{found[1]}}}, which is not set")
        return os.environ[found[1]]

    return _VARIABLE.sub(variable, text)
