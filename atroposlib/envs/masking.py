"""Secrets come from the environment and never reach a file, a tracker or an error message."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from atroposlib.errors import ConfigError
from atroposlib.tracking import json_value

MASK: Final = "***"
_SECRET = re.compile(
    r"(^|_)(api_?keys?|secrets?|passwords?|passwd|credentials?|authorization)($|_(?!env$))"
    r"|(^|_)(api|auth|access|bearer|hf|server|secret)_?token$"
    r"|^token$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret: ``api_key`` does, ``api_key_env`` and ``max_token`` do not."""
    return _SECRET.search(name.replace("-", "_")) is not None


def secret_from(variable: str | None, setting: str) -> str | None:
    """A secret from the environment variable that ``setting`` names. Raises: ConfigError where it is not set."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigError(f"{setting} names the environment variable {variable}, which is not set")
    return os.environ[variable]


def masked(values: Any, name: str = "") -> Any:
    """A copy in plain JSON types in which every secret is ``***``, however deep it stands."""
    if isinstance(values, BaseModel):
        values = dict(values)
    if is_secret(name) and values:
        return MASK
    if isinstance(values, Mapping):
        return {str(key): masked(value, str(key)) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [masked(value) for value in values]
    return json_value(values)
