"""The engines of a run, looked at before anything is collected: there, which model, do they tell their token ids."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atroposlib.envs.server_handling.generation import EngineFacts
from atroposlib.envs.server_handling.http_client import EngineHttp
from atroposlib.envs.settings import Settings
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

Mode = Literal["serve", "process", "evaluate"]
PROXY_TIMEOUT_S = 10.0


async def prepare_engines(env: BaseEnv, mode: Mode, settings: Settings) -> None:
    """Wait for the engines, probe them once and tell the environment what they are.

    Engines that nobody chose (the default ports) are looked at but not waited for: many environments need none.
    Raises: EngineUnavailable, EngineRefused; ConfigError where ``serve`` needs token ids and an engine gives none, or
    where an environment that cannot do without one has none, or where the tokenizer is not found that goes with them,
    or another one was named, or no capture proxy is there.
    """
    if env.server.use_proxy and env.server.proxy_url:
        await _check_proxy(env.server.proxy_url)
    servers = env.server.servers
    if not servers:
        return
    if not settings.engine_chosen and not settings.options.testing and not await _any_up(env):
        urls = ", ".join(str(server.config.base_url) for server in servers)
        if env.needs_engine:
            raise ConfigError(
                f"no engine was chosen, and none answers at {urls}; say where it is: --openai.base_url URL"
            )
        logger.warning("no engine was chosen (--openai.base_url), and none answers at %s", urls)
        return
    await env.server.wait_until_ready()
    facts = await _probe(env, strict=mode == "serve")
    env.engine_facts = facts
    _choose_tokenizer(env, facts, settings)
    if not facts.token_exact:
        _without_token_ids(env, facts, mode)
    elif env.needs_tokenizer(mode):
        tokenizer = await asyncio.to_thread(lambda: env.tokenizer)  # a wrong one is found before anything is started
        await env.server.check_tokenizer(tokenizer)


async def _check_proxy(url: str) -> None:
    http = EngineHttp({}, timeout_s=PROXY_TIMEOUT_S)
    try:
        await http.get(f"{url.rstrip('/')}/health")
    except (EngineRefused, EngineUnavailable) as error:
        if getattr(error, "status", None) is None:  # else somebody answers, and that was the question
            raise ConfigError(
                f"--proxy_url {url}: no capture proxy answers there; start it, or correct the URL"
            ) from error
    finally:
        await http.close()


async def _any_up(env: BaseEnv) -> bool:
    for server in env.server.servers:
        await server.check_server_status_task()
    return any(server.server_healthy for server in env.server.servers)


async def _probe(env: BaseEnv, strict: bool) -> EngineFacts:
    """The engines' facts; unless ``strict``, an engine that is up but fails at completions from ids gives none."""
    try:
        return await env.server.probe()
    except EngineUnavailable as error:
        if strict or not await _any_up(env):
            raise
        return EngineFacts(False, str(error), model_name=env.server.servers[0].config.model_name)


def _without_token_ids(env: BaseEnv, facts: EngineFacts, mode: Mode) -> None:
    env.trainable = False
    if mode == "serve" and env.needs_token_ids and not env.server.allow_placeholders:
        raise ConfigError(
            f"training needs an engine that tells the token ids and logprobs it sampled: {facts.reason}. "
            "Serve the model with vLLM, SGLang or `python -m trainer.serve`; process and evaluate work with this one"
        )
    env.server.allow_placeholders = True
    logger.warning("nothing from this run can be trained on: %s", facts.reason)


def _choose_tokenizer(env: BaseEnv, facts: EngineFacts, settings: Settings) -> None:
    """The engine's own tokenizer, or its model's name, where nobody named another one."""
    scripted: Any = getattr(env.server.servers[0], "tokenizer", None)
    if scripted is not None and not env.has_tokenizer:
        env.tokenizer = scripted
    if "tokenizer_name" in settings.env.model_fields_set:
        return
    named = env.server.servers[0].config.tokenizer_name
    chosen = named if named != "none" else _home_of(facts)
    if chosen and chosen != "default":
        env.config.tokenizer_name = chosen


def _home_of(facts: EngineFacts) -> str:
    """Where the model was loaded from, unless that is a folder of another machine; else its name."""
    root = facts.model_root
    elsewhere = Path(root).is_absolute() and not Path(root).is_dir()
    return facts.model_name if not root or elsewhere else root
