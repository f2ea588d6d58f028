"""What ``--help`` says: every flag with its type and its value in this environment."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atroposlib.envs.argv import Shape
from atroposlib.envs.constants import ENV_NAMESPACE, OPENAI_NAMESPACE
from atroposlib.envs.masking import masked
from atroposlib.envs.settings import Defaults, RunOptions

MODES: Mapping[str, str] = {
    "serve": "collect groups for a trainer, until it has taken its steps",
    "process": "make --env.total_steps groups and write them to a file",
    "evaluate": "set up, evaluate once, write the results",
}

_GRAMMAR = """\
--name value, --name=value; a boolean may stand bare; None is None; a list is `a b c`, `a,b,c` or JSON; a dict is JSON,
or one entry at a time: --env.extra_body.top_k 5. A flag without its namespace (--group_size 4) is looked up in env,
then in openai{more}. Command line > YAML (--config) > defaults of the mode > config_init > defaults of the fields.
"""


def usage(program: str) -> str:
    """The short answer: which modes there are."""
    width = max(map(len, MODES))
    modes = "\n".join(f"  {mode.ljust(width)}  {what}" for mode, what in MODES.items())
    return f"usage: {program} {{{','.join(MODES)}}} [flags]\n\n{modes}\n\n`{program} serve --help` lists the flags.\n"


def mode_help(program: str, mode: str, env_class: type, defaults: Defaults) -> str:
    """The long answer: every flag of one mode."""
    more = "".join(f", then in {name}" for name in defaults.extra)
    lines = [f"usage: {program} {mode} [flags]", "", f"{MODES[mode]}."]
    if env_class.__doc__:
        lines += ["", f"{env_class.__name__}: {inspect.cleandoc(env_class.__doc__).splitlines()[0]}"]
    lines += ["", _GRAMMAR.format(more=more), "the run:"]
    values = RunOptions(slurm=defaults.slurm, testing=defaults.testing)
    lines += _section("--", RunOptions, dict(values), set())
    taken = set(RunOptions.model_fields)
    for namespace, model in defaults.namespaces.items():
        lines += ["", f"{namespace}:"]
        lines += _section(f"--{namespace}.", model, _values(namespace, defaults), taken)
        taken |= set(model.model_fields)
    return "\n".join(lines) + "\n"


def _values(namespace: str, defaults: Defaults) -> dict[str, Any]:
    if namespace == ENV_NAMESPACE:
        return {**dict(defaults.env), **defaults.mode_env}
    if namespace == OPENAI_NAMESPACE:
        servers = defaults.servers[:1] if isinstance(defaults.servers, list) else [defaults.servers]
        return dict(servers[0]) if servers else {}
    return dict(defaults.extra[namespace])


def _section(prefix: str, model: type[BaseModel], values: Mapping[str, Any], taken: set[str]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        note = f"--{name} alone means another flag" if name in taken else ""
        description = "; ".join(part for part in ((field.description or "").rstrip("."), note) if part)
        yield f"  {prefix}{name} {Shape(field.annotation).describe()}{_default(name, field, values)}"
        if description:
            yield from textwrap.wrap(description, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)


def _default(name: str, field: FieldInfo, values: Mapping[str, Any]) -> str:
    if name in values:
        shown = str(masked(values[name], name))
    elif field.is_required():
        return " (required)"
    else:
        shown = str(masked(field.get_default(call_default_factory=True), name))
    return f" = {shown if len(shown) <= 80 else shown[:77] + '...'}"
