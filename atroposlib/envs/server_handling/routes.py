"""Whether a URL is the base of an engine's routes: neither one of the routes, nor the URL of another server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    from atroposlib.envs.server_handling.http_client import EngineHttp
    from atroposlib.envs.server_handling.server_baseline import APIServerConfig

UNKNOWN_ROUTE: Final = (404, 405)
_ROUTE: Final = re.compile(r"(/chat/completions|/completions|(?<=/v1)/(chat|models))/*$")
_EXAMPLE: Final = "http://localhost:9001/v1"
_TIMEOUT_S: Final = 10.0
_QUEUE_SAYS: Final = {"message": "AtroposLib API"}
"""What the trajectory server answers at its root."""


def base_of_route(url: str) -> str | None:
    """The base of an engine's URL where it is one of its routes, such as …/chat/completions; None where it is none."""
    path = re.split("[?#]", url, maxsplit=1)[0]
    found = _ROUTE.search(path)
    return path[: found.start()] if found else None


async def check_routes(http: EngineHttp, config: APIServerConfig, model: str) -> None:
    """Ask what an engine without completions has instead: a list of models, or chats; nothing is generated.

    Raises: ConfigError where it has neither, or no such model.
    """
    url = config.base_url or ""
    if await _lists_models(http, url):
        return
    try:
        await http.post(f"{url}/chat/completions", {"model": model, "messages": [], "max_tokens": 1}, _TIMEOUT_S)
    except EngineRefused as refused:
        if refused.status in UNKNOWN_ROUTE:
            names_model = model in str(refused).removeprefix(url)
            asked = config.spelled("model_name")
            wrong = f"{asked} {model}: {refused}" if names_model else await _what_is_wrong(http, config)
            raise ConfigError(wrong) from refused
    except EngineUnavailable:
        return  # it may be busy; real requests are repeated


async def _what_is_wrong(http: EngineHttp, config: APIServerConfig) -> str:
    url, flag = config.base_url or "", config.spelled("base_url")
    root = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    if await _said(http, f"{root}/") == _QUEUE_SAYS:
        return f"{flag} {url}: the trajectory server (run-api) is there; give the URL of the engine, such as {_EXAMPLE}"
    wrong = f"{flag} {url}: no engine has its routes there (models, completions and chat/completions are unknown)"
    if await _lists_models(http, f"{root}/v1"):
        return f"{wrong}; give {root}/v1"
    also = f", or {config.spelled('model_name')}" if config.has_model_name else ""
    return f"{wrong}; correct it, as in {_EXAMPLE}{also} ({config.spelled('health_check')} false goes on regardless)"


async def _lists_models(http: EngineHttp, url: str) -> bool:
    answer = await _said(http, f"{url}/models")
    return isinstance(answer, dict) and isinstance(answer.get("data"), list)


async def _said(http: EngineHttp, url: str) -> Any:
    """What a GET is answered with; None where it is refused or fails."""
    try:
        return await http.get(url, _TIMEOUT_S)
    except (EngineRefused, EngineUnavailable):
        return None
