"""Where the settings of a run come from, and which wins.

Command line > YAML file > defaults of the mode > ``config_init`` > defaults of the fields. Every value remembers where
it came from, so that an error names the flag or the line to change. Nothing here asks an engine or reads a secret.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atroposlib.envs.argv import Flag, Shape, read_value
from atroposlib.envs.config import BaseEnvConfig
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.masking import MASK, is_secret
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ServerBaseline
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)

Servers = ServerBaseline | list[APIServerConfig]
Model = TypeVar("Model", bound=BaseModel)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class RunOptions(BaseModel):
    """Settings that belong to no namespace."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    slurm: bool = False
    """Find the engines on the nodes of this Slurm job."""
    testing: bool = False
    """Relax limits; without a base_url, a scripted engine answers."""
    config: str | None = None
    """YAML file with the sections env, openai, slurm, testing."""
    max_n_completions: int | None = Field(None, ge=1)
    """Most completions asked for in one request."""
    proxy_url: str | None = None
    """Proxy that managed servers go through."""
    show: str | bool | None = None
    """Print one rollout after the run; with a file, print one of that file and run nothing."""


@dataclass(frozen=True)
class Defaults:
    """What an environment and a mode bring: the lowest layers."""

    env: BaseEnvConfig
    servers: Servers
    env_class: type[BaseEnvConfig]
    mode_env: Mapping[str, Any] = field(default_factory=dict)
    slurm: bool = False
    testing: bool = False
    extra: Mapping[str, BaseModel] = field(default_factory=dict)
    """Namespaces of the environment's own, such as ``teacher``, with their defaults."""
    read_config: Callable[[str], Mapping[str, Any]] = lambda path: read_yaml(path)
    """Reads the file that ``--config`` names into sections."""

    @property
    def server_class(self) -> type[APIServerConfig]:
        """The class that ``--openai.*`` flags describe."""
        first = self.servers[0] if isinstance(self.servers, list) and self.servers else self.servers
        return type(first) if isinstance(first, APIServerConfig) else APIServerConfig

    @property
    def namespaces(self) -> dict[str, type[BaseModel]]:
        """In the order in which a flag without a namespace is looked up."""
        own = {name: type(model) for name, model in self.extra.items()}
        return {ENV_NAMESPACE: self.env_class, OPENAI_NAMESPACE: self.server_class, **own}


@dataclass(frozen=True)
class Settings:
    """Everything one run is made from."""

    env: BaseEnvConfig
    servers: Servers
    options: RunOptions
    extra: Mapping[str, BaseModel] = field(default_factory=dict)
    engine_chosen: bool = False
    """Whether somebody named an engine, rather than leaving it to the default ports."""


@dataclass(frozen=True)
class Assignment:
    """One value for one setting; ``keys`` lead into a dict, ``origin`` is what a person can change."""

    namespace: str
    name: str
    value: Any
    origin: str
    keys: tuple[str, ...] = ()


def settings_from(flags: Iterable[Flag], defaults: Defaults) -> Settings:
    """Put the layers together. Raises: ConfigError, which names the flag, file or key at fault."""
    typed = [_assignment(flag, defaults.namespaces) for flag in flags]
    path = next((each.value for each in reversed(typed) if (each.namespace, each.name) == ("", "config")), None)
    document = defaults.read_config(path) if path else {}
    options = _options(document, [each for each in typed if not each.namespace], path, defaults)
    in_file, servers_in_file = _yaml_assignments(document, path or "", defaults.namespaces)
    assignments = [*in_file, *typed]
    servers = _merge_servers(defaults, servers_in_file, _of(assignments, OPENAI_NAMESPACE))
    return Settings(
        env=_merge_env(defaults, _of(assignments, ENV_NAMESPACE)),
        servers=servers,
        options=options,
        extra={
            name: _merge(type(model), _set_fields(model), _of(assignments, name))
            for name, model in defaults.extra.items()
        },
        engine_chosen=isinstance(servers, list) and bool(servers),
    )


# flags


def _assignment(flag: Flag, namespaces: Mapping[str, type[BaseModel]]) -> Assignment:
    namespace, name, keys = find_setting(flag.name, namespaces)
    model = namespaces.get(namespace, RunOptions)
    shape = Shape(model.model_fields[name].annotation)
    for key in keys:
        if not (shape.mapping or shape.anything):
            raise ConfigError(f"{flag.spelled}: {name} is not a dict, so it has no entry {key!r}")
        shape = shape.inner(key)
    return Assignment(namespace, name, read_value(flag, shape), flag.spelled, keys)


def find_setting(flag: str, namespaces: Mapping[str, type[BaseModel]]) -> tuple[str, str, tuple[str, ...]]:
    """Namespace ("" for the run's own), field, and keys into it. Raises: ConfigError listing close names."""
    first, *rest = flag.split(NAMESPACE_SEP)
    first = first.replace("-", "_")
    if first in namespaces and rest:
        name = rest[0].replace("-", "_")
        if name in namespaces[first].model_fields:
            return first, name, tuple(rest[1:])
        raise _unknown(f"--{flag}", f"{first}.{name}", namespaces)
    if first in RunOptions.model_fields and not rest:
        return "", first, ()
    for namespace, model in namespaces.items():
        if first in model.model_fields:
            return namespace, first, tuple(rest)
    raise _unknown(f"--{flag}", flag, namespaces)


def _unknown(spelled: str, name: str, namespaces: Mapping[str, type[BaseModel]]) -> ConfigError:
    """Close names, compared both with and without their namespace."""
    settings = [f"{space}.{each}" for space, model in namespaces.items() for each in model.model_fields]
    known = {each: f"--{each}" for each in settings}
    bare = {each.partition(".")[2]: f"--{each}" for each in reversed(settings)}
    bare |= {each: f"--{each}" for each in RunOptions.model_fields}
    near = [known[each] for each in get_close_matches(name, known, n=3, cutoff=0.75)]
    near += [bare[each] for each in get_close_matches(name.rpartition(".")[2], bare, n=3, cutoff=0.6)]
    hint = f"is {' or '.join(dict.fromkeys(near[:4]))} meant?" if near else "--help lists them"
    return ConfigError(f"unknown flag {spelled}; {hint}")


# YAML


def read_yaml(path: str) -> dict[str, Any]:
    """A mapping from a file; an empty file is an empty mapping. Raises: ConfigError."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not YAML: {_yaml_fault(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: expected sections (env:, openai:, ...), found a {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _yaml_fault(error: Exception) -> str:
    """What is wrong and in which line, without the excerpt of several lines."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}: {problem}" if mark and problem else str(error)


def _yaml_assignments(
    document: Mapping[str, Any], path: str, namespaces: Mapping[str, type[BaseModel]]
) -> tuple[list[Assignment], list[dict[str, Any]] | None]:
    """The values of all sections, and the servers where ``openai`` lists several."""
    known = [*namespaces, *(name for name in RunOptions.model_fields if name not in ("config", "show"))]
    for key in document:
        if key not in known:
            meant = _near(key, known) or f"; known are {', '.join(known)}"
            raise ConfigError(f"{path}: unknown section {key!r}{meant}")
    assignments: list[Assignment] = []
    servers: list[dict[str, Any]] | None = None
    section: Any
    for namespace, model in namespaces.items():
        section = document.get(namespace)
        if namespace == OPENAI_NAMESPACE and isinstance(section, list):
            if len(section) != 1:
                servers = [_checked_section(each, model, path, f"{namespace}[{i}]") for i, each in enumerate(section)]
                continue
            section = section[0]
        for name, value in _checked_section(section, model, path, namespace).items():
            assignments.append(Assignment(namespace, name, value, f"{path}: {namespace}.{name}"))
    return assignments, servers


def _checked_section(section: Any, model: type[BaseModel], path: str, label: str) -> dict[str, Any]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {label} must be a mapping, not a {type(section).__name__}")
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key not in model.model_fields:
            raise ConfigError(f"{path}: unknown key {label}.{key}{_near(str(key), model.model_fields)}")
        optional = Shape(model.model_fields[key].annotation).optional
        if not (is_secret(key) and value == MASK):  # a file that a run wrote, with its secrets masked
            values[key] = None if value == "None" and optional else value
    if isinstance(values.get("api_key"), str):
        values["api_key"] = _VARIABLE.sub(lambda found: _variable(found[1], path), values["api_key"])
    return values


def _variable(name: str, path: str) -> str:
    if name not in os.environ:
        raise ConfigError(f"{path}: api_key names ${{{name}}}, which is not set")
    return os.environ[name]


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; is {' or '.join(near)} meant?" if near else ""


# layers


def _of(assignments: Iterable[Assignment], namespace: str) -> list[Assignment]:
    return [each for each in assignments if each.namespace == namespace]


def _options(
    document: Mapping[str, Any], typed: Sequence[Assignment], path: str | None, defaults: Defaults
) -> RunOptions:
    in_file = [
        Assignment("", name, document[name], f"{path}: {name}")
        for name in RunOptions.model_fields
        if name in document and name not in ("config", "show")
    ]
    return _merge(RunOptions, {"slurm": defaults.slurm, "testing": defaults.testing}, [*in_file, *typed])


def _merge_env(defaults: Defaults, assignments: Sequence[Assignment]) -> BaseEnvConfig:
    base, cls = defaults.env, defaults.env_class
    if type(base) is cls:
        return _merge(cls, {**_set_fields(base), **defaults.mode_env}, assignments)
    known = {name: value for name, value in base if name in cls.model_fields}
    return _merge(cls, {**known, **defaults.mode_env}, assignments)


def _merge_servers(
    defaults: Defaults, in_file: list[dict[str, Any]] | None, assignments: Sequence[Assignment]
) -> Servers:
    servers = defaults.servers
    if isinstance(servers, APIServerConfig):
        servers = [servers]
    if in_file is not None:
        origin = "the openai list of --config"
        servers = [_validated(defaults.server_class, values, {}, origin) for values in in_file]
    if not assignments:
        return servers
    if isinstance(servers, list):
        if len(servers) > 1:
            raise ConfigError(
                f"{assignments[0].origin}: {len(servers)} engines are configured, so it is not clear which one is "
                "meant; set it in the openai list of the YAML file (--config), or in config_init"
            )
        base = servers[0] if servers else defaults.server_class()
        return [_merge(type(base), _set_fields(base), assignments)]
    if all(each.name in ServerBaseline.model_fields for each in assignments):
        return _merge(type(servers), _set_fields(servers), assignments)
    return [_merge(defaults.server_class, _set_fields(servers), assignments)]


def _set_fields(model: BaseModel) -> dict[str, Any]:
    """The values that somebody set; the others come from the class again."""
    return {name: value for name, value in model if name in model.model_fields_set}


def _merge(cls: type[Model], base: Mapping[str, Any], assignments: Sequence[Assignment]) -> Model:
    values, origins = dict(base), {}
    for each in assignments:
        origins[each.name] = each.origin
        if each.keys:
            values[each.name] = _with_entry(values.get(each.name), each.keys, each.value)
        else:
            values[each.name] = each.value
    return _validated(cls, values, origins, "config_init")


def _with_entry(container: Any, keys: tuple[str, ...], value: Any) -> Any:
    """A copy of ``container`` with the entry that ``keys`` lead to replaced."""
    if not keys:
        return value
    entries = dict(container) if isinstance(container, (Mapping, BaseModel)) else {}
    return {**entries, keys[0]: _with_entry(entries.get(keys[0]), keys[1:], value)}


def _validated(cls: type[Model], values: Mapping[str, Any], origins: Mapping[str, str], otherwise: str) -> Model:
    try:
        return cls(**values)
    except ValidationError as error:
        faults = [_fault(fault, origins, otherwise) for fault in error.errors(include_url=False)[:5]]
        raise ConfigError("\n".join(faults)) from None


def _fault(fault: Mapping[str, Any], origins: Mapping[str, str], otherwise: str) -> str:
    location = [str(part) for part in fault["loc"]]
    name = location[0] if location else ""
    if fault["type"] == "missing":
        return f"--env.{name} is required"
    message = str(fault["msg"]).removeprefix("Value error, ")
    origin = origins.get(name) or (not name and _named_in(message, origins)) or f"{otherwise}: {name}".rstrip(": ")
    if is_secret(name) or isinstance(fault.get("input"), (dict, BaseModel)):
        return f"{origin}: {message}"
    return f"{origin}: {message} (got {fault.get('input')!r})"


def _named_in(message: str, origins: Mapping[str, str]) -> str:
    """Where the settings came from that a message about several of them names."""
    return ", ".join(dict.fromkeys(origin for name, origin in origins.items() if re.search(rf"\b{name}\b", message)))
