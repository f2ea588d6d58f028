"""The URLs among the settings of a run: each leads to a server of its own and holds no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import BaseModel

from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.routes import base_of_route
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.settings import Settings
from atroposlib.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


@dataclass(frozen=True)
class _Url:
    url: str
    flag: str
    key_flag: str | None
    """What takes the name of the variable that holds the key for this URL."""


def check_urls(settings: Settings) -> None:
    """Raises: ConfigError where a URL holds a secret, is a route of an engine, or leads to no server."""
    for each in _urls(settings):
        if _holds_credentials(each.url):
            instead = f" ({each.key_flag} names the variable that holds a key)" if each.key_flag else ""
            raise ConfigError(
                f"{each.flag} holds a user name or a password, which would reach files and logs: leave it out{instead}"
            )
        if each.flag.endswith("base_url"):
            check_base(each.url, each.flag)
    check_url(settings.env.rollout_server_url, "--env.rollout_server_url")
    for server in _engines(settings):
        if server.base_url:
            check_url(server.base_url, "--openai.base_url")


def check_addresses(settings: Settings) -> None:
    """Engine and trajectory server are two programs. Raises: ConfigError where both URLs lead to one port."""
    url = settings.env.rollout_server_url
    for server in _engines(settings):
        if server.base_url and _address(server.base_url) == _address(url):
            raise ConfigError(
                f"--openai.base_url ({server.base_url}) and --env.rollout_server_url ({url}) are the same address: the "
                "first is the engine, the second the trajectory server (run-api); give one of them another port"
            )


def _engines(settings: Settings) -> list[APIServerConfig]:
    return settings.servers if isinstance(settings.servers, list) else []


def _urls(settings: Settings) -> Iterator[_Url]:
    """Every URL that somebody can set, also those that an environment adds."""
    yield from _urls_of(settings.env, ENV_NAMESPACE)
    for server in _engines(settings):
        yield from _urls_of(server, OPENAI_NAMESPACE)
    for namespace, model in settings.extra.items():
        yield from _urls_of(model, namespace)
    if settings.options.proxy_url:
        yield _Url(settings.options.proxy_url, "--proxy_url", None)


def _urls_of(model: BaseModel, namespace: str) -> Iterator[_Url]:
    for name, value in model:
        if name.endswith("_url") and isinstance(value, str):
            key_names = (name.removesuffix("base_url") + "api_key_env", name.removesuffix("url") + "token_env")
            known = (each for each in key_names if each in type(model).model_fields)
            key_flag = next((f"--{namespace}{NAMESPACE_SEP}{each}" for each in known), None)
            yield _Url(value, f"--{namespace}{NAMESPACE_SEP}{name}", key_flag)


def _holds_credentials(url: str) -> bool:
    """Whether a user name, with or without a password, stands before the host; the scheme may be missing."""
    return "@" in re.split("[/?#]", url.split("://", 1)[-1])[0]


def check_url(url: str, flag: str) -> None:
    """Raises: ConfigError where it leads to no server; it begins with ``flag``, the place where the URL was read."""
    try:
        host, port = _address(url)
        scheme = urlsplit(url).scheme if "://" in url else "http"
    except ValueError as error:
        raise ConfigError(f"{flag}: {url!r} is no URL ({error})") from None
    if scheme not in _PORTS or not host or not port or any(letter.isspace() for letter in url):
        raise ConfigError(f"{flag}: {url!r} is no URL of a server, such as http://localhost:8000")


def check_base(url: str, flag: str) -> None:
    """Raises: ConfigError where the URL of an engine is one of its routes; it begins with ``flag``."""
    base = base_of_route(url)
    if base is not None:
        raise ConfigError(f"{flag}: {url} is a route of an engine; give the base of its routes: {base}")


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host = parts.hostname or ""
    return ("localhost" if host in _HERE else host), parts.port or _PORTS.get(parts.scheme)
