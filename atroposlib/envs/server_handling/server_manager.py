"""The engines of an environment, behind one face: ``self.server`` of every environment is a ``ServerManager``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from atroposlib.envs.server_handling.completions import in_portions, merge_choices, together
from atroposlib.envs.server_handling.generation import (
    EngineFacts,
    Generation,
    TokensAndLogprobs,
    merge_generations,
)
from atroposlib.envs.server_handling.known_text import check_tokenizer
from atroposlib.envs.server_handling.server_baseline import (
    APIServer,
    APIServerConfig,
    OpenaiConfig,
    ReasoningConfig,
    ServerBaseline,
)
from atroposlib.envs.server_handling.slurm import slurm_urls
from atroposlib.errors import ConfigError, EngineUnavailable

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    from atroposlib.envs.server_handling.chat_template import ChatTemplate
    from atroposlib.envs.server_handling.managed_server import ManagedServer

__all__ = [
    "APIServer",
    "APIServerConfig",
    "EngineFacts",
    "OpenaiConfig",
    "ReasoningConfig",
    "ServerBaseline",
    "ServerManager",
    "ServerManagerConfig",
]

logger = logging.getLogger(__name__)
T = TypeVar("T")
ServerConfigs = ServerBaseline | Sequence[APIServerConfig | APIServer]
LOCAL_PORTS = range(9004, 9008)


class ServerManagerConfig(BaseModel):
    """What the command line may set about all engines together."""

    slurm: bool = False
    testing: bool = False
    max_n_completions: int = 8
    proxy_url: str | None = None


class ServerManager:
    """Sends each request to the engine with the most room.

    ``configs``: one ``APIServerConfig``, a list of them (or of ready ``APIServer`` objects), or a ``ServerBaseline``,
    which stands for four local engines on the ports 9004 to 9007. ``server_class`` replaces the client that
    ``server_type`` would choose. With ``testing`` and no URL a scripted engine answers. ``slurm`` takes the engines of
    the job's nodes. Requests for more than ``max_n_completions`` choices are split. With ``use_proxy`` every
    ``managed_server`` is a session of the capture proxy at ``proxy_url`` (``managed_server_proxy``).

    Use ``async with ServerManager(...)`` or call ``close()``: the engines hold connections.
    """

    def __init__(
        self,
        configs: ServerConfigs,
        server_class: type[APIServer] = APIServer,
        slurm: bool = False,
        testing: bool = False,
        max_n_completions: int = 8,
        reasoning_config: ReasoningConfig | None = None,
        proxy_url: str | None = None,
        use_proxy: bool = False,
        tool_parser: str | None = None,
    ) -> None:
        self.max_n_completions = max(1, max_n_completions)
        self.reasoning_config = reasoning_config
        self.proxy_url = proxy_url
        self.use_proxy = use_proxy
        self.tool_parser = tool_parser
        self.allow_placeholders = False
        self._template: ChatTemplate | None = None
        self.servers = _open_servers(configs, server_class, slurm, testing, reasoning_config)

    async def __aenter__(self) -> ServerManager:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        for server in self.servers:
            await server.close()

    async def wait_until_ready(self) -> None:
        """Return when every engine answers.

        Raises:
            EngineUnavailable: one did not within ``wait_s`` of its config; the message names its URL.
        """
        await together(server.wait_until_ready() for server in self._required_servers())

    async def probe(self) -> EngineFacts:
        """What all engines have in common, found out by one cheap request to each; later calls remember.

        Not token-exact if one of them is not; ``max_model_len`` is the smallest.
        """
        facts = await together(server.probe() for server in self._required_servers())
        inexact = [fact for fact in facts if not fact.token_exact]
        lengths = [fact.max_model_len for fact in facts if fact.max_model_len]
        chosen = (inexact or facts)[0]
        return EngineFacts(
            token_exact=not inexact,
            reason=chosen.reason,
            model_name=chosen.model_name,
            max_model_len=min(lengths, default=None),
            model_root=chosen.model_root,
            engine=chosen.engine,
        )

    async def check_tokenizer(self, tokenizer: Any) -> None:
        """Compare a tokenizer with what the engines make of a text, as far as they tell; each is asked once.

        Raises:
            ConfigError: an engine makes other ids of it.
        """
        await together(self._check_tokenizer(server, tokenizer) for server in self._required_servers())

    # requests

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Complete a chat; arguments as in OpenAI's API, and ``split="train" | "eval"``.

        Raises:
            EngineUnavailable: no answer after all retries. EngineRefused: the engine refused the request.
        """
        answer: ChatCompletion = await self._split(lambda server, **each: server.chat_completion(**each), kwargs)
        return answer

    async def completion(self, **kwargs: Any) -> Completion:
        """Complete a text; otherwise like ``chat_completion``."""
        answer: Completion = await self._split(lambda server, **each: server.completion(**each), kwargs)
        return answer

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> TokensAndLogprobs:
        """Complete ``input_ids`` (or ``prompt``): (prompt ids, [sampled ids], [logprobs], [finish reasons])."""
        return (await self.generate(**kwargs)).as_lists()

    async def generate(self, **kwargs: Any) -> Generation:
        """Complete ``input_ids`` (or ``prompt``) and return everything the engine told about the tokens."""
        requests = in_portions(kwargs, self.max_n_completions)
        parts = await together(self._send(lambda server, **each: server.generate(**each), each) for each in requests)
        return merge_generations(parts)

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """Score a given text; see ``APIServer.get_logprobs``."""
        return await self._send(lambda server, **each: server.get_logprobs(**each), kwargs)

    # scopes

    @asynccontextmanager
    async def dedicated_server(self) -> AsyncIterator[APIServer]:
        """One engine for several requests in a row, so that its cache of the prompt is used."""
        yield self._choose()

    @asynccontextmanager
    async def managed_server(
        self,
        tokenizer: Any = None,
        base_url: str | None = None,
        preserve_think_blocks: bool = False,
        tool_call_parser: Any = None,
        max_rollout_tokens: int | None = None,
    ) -> AsyncIterator[ManagedServer]:
        """One rollout, recorded token by token; see ``ManagedServer``. ``base_url`` pins it to one of the engines.

        What was recorded has to be read inside the block: at its end it is forgotten.

        Raises:
            NotTokenExact: the engine does not tell the ids it sampled, and placeholders are not allowed.
        """
        parser = tool_call_parser if tool_call_parser is not None else self.tool_parser
        if self.use_proxy:
            async with self._proxied(base_url, preserve_think_blocks, parser, max_rollout_tokens) as proxied:
                yield proxied
            return
        managed = await self.open_rollout(tokenizer, base_url, preserve_think_blocks, parser, max_rollout_tokens)
        try:
            yield managed
        finally:
            managed.reset()

    async def open_rollout(
        self,
        tokenizer: Any = None,
        base_url: str | None = None,
        preserve_think_blocks: bool = False,
        tool_call_parser: Any = None,
        max_rollout_tokens: int | None = None,
    ) -> ManagedServer:
        """Like ``managed_server``, for a rollout that lasts longer than a block; never over a proxy."""
        from atroposlib.envs.server_handling.managed_server import open_managed_server

        server = self._pinned(base_url) if base_url else self._choose()
        server.max_n_completions = self.max_n_completions
        tokenizer = tokenizer if tokenizer is not None else getattr(server, "tokenizer", None)
        if tokenizer is not None:
            await self._check_tokenizer(server, tokenizer)
        managed: ManagedServer = await open_managed_server(
            server,
            tokenizer=tokenizer,
            template=self._template_of(tokenizer),
            preserve_think_blocks=preserve_think_blocks,
            tool_call_parser=tool_call_parser,
            allow_placeholders=self.allow_placeholders,
            max_rollout_tokens=max_rollout_tokens,
        )
        return managed

    def _proxied(
        self, base_url: str | None, preserve_think_blocks: bool, parser: Any, max_rollout_tokens: int | None
    ) -> Any:
        from atroposlib.envs.server_handling.proxied_server import open_proxied

        if self.proxy_url is None:
            raise ConfigError("use_proxy is set, but no proxy_url: set it to the capture proxy's, or drop use_proxy")
        return open_proxied(
            self.proxy_url,
            tool_parser=parser if parser is None or isinstance(parser, str) else parser.name,
            base_url=base_url,
            preserve_think_blocks=preserve_think_blocks,
            max_rollout_tokens=max_rollout_tokens,
        )

    async def _check_tokenizer(self, server: APIServer, tokenizer: Any) -> None:
        facts = await server.probe()
        ids = await server.ids_of_known_text() if facts.token_exact else None
        if ids is not None:
            check_tokenizer(tokenizer, ids, facts, server.config.base_url or "the engine")

    def _template_of(self, tokenizer: Any) -> ChatTemplate | None:
        """What was found out about the chat template, shared by all rollouts with this tokenizer."""
        from atroposlib.envs.server_handling.chat_template import ChatTemplate

        if tokenizer is None:
            return None
        if self._template is None or not self._template.is_of(tokenizer):
            self._template = ChatTemplate(tokenizer)
        return self._template

    # for the base environment

    async def update_weight(self, weight: float) -> None:
        """Use this share of every engine's training slots."""
        for server in self.servers:
            await server.update_weight(weight)

    async def wait_for_sem(self, is_training: bool) -> None:
        """Kept for environments that call it: requests wait for their slot by themselves."""

    async def wandb_metrics(self, metrics_dict: dict[str, Any] | None = None) -> dict[str, Any]:
        """Add the timings of all engines, numbered as in ``servers``."""
        metrics = {} if metrics_dict is None else metrics_dict
        for index, server in enumerate(self.servers):
            await server.wandb_metrics(metrics, f"server_{index}")
        return metrics

    # how a request finds its engine

    async def _split(self, request: Callable[..., Awaitable[Any]], kwargs: dict[str, Any]) -> Any:
        portions = in_portions(kwargs, self.max_n_completions)
        if len(portions) == 1:
            return await self._send(request, portions[0])
        return merge_choices(await together(self._send(request, each) for each in portions))

    async def _send(self, request: Callable[..., Awaitable[T]], kwargs: dict[str, Any]) -> T:
        """Ask the engine with the most room; if it is gone, another one that is not."""
        server = self._choose()
        try:
            return await request(server, **kwargs)
        except EngineUnavailable:
            other = self._choose()
            if other is server or other.avoided:
                raise
            logger.warning("engine %s is unavailable; asking %s", server.config.base_url, other.config.base_url)
            return await request(other, **kwargs)

    def _choose(self) -> APIServer:
        return min(self._required_servers(), key=lambda server: (server.avoided, server.sem.load))

    def _pinned(self, base_url: str) -> APIServer:
        wanted = APIServerConfig(base_url=base_url).base_url
        for server in self.servers:
            if server.config.base_url == wanted:
                return server
        known = ", ".join(str(server.config.base_url) for server in self.servers)
        raise ConfigError(f"no engine has the URL {wanted}; there are: {known}")

    def _required_servers(self) -> list[APIServer]:
        if not self.servers:
            raise ConfigError("this environment has no engine; set --openai.base_url, such as http://localhost:9001/v1")
        return self.servers


def _open_servers(
    configs: ServerConfigs,
    server_class: type[APIServer],
    slurm: bool,
    testing: bool,
    reasoning_config: ReasoningConfig | None,
) -> list[APIServer]:
    listed = [configs] if isinstance(configs, (APIServerConfig, APIServer)) else configs
    if testing and not _has_engine(listed):
        from atroposlib.envs.server_handling.server_harness import ServerHarness

        return [ServerHarness()]
    if isinstance(listed, ServerBaseline):
        listed = _expand(listed, slurm_urls() or [f"http://localhost:{port}/v1" for port in LOCAL_PORTS])
    elif slurm and listed and not isinstance(listed[0], APIServer):
        urls = slurm_urls()
        if not urls:
            logger.warning("slurm is set, but this is no Slurm job; taking the configured engines")
        listed = _expand(listed[0], urls) if urls else listed
    return [each if isinstance(each, APIServer) else _open(each, server_class, reasoning_config) for each in listed]


def _has_engine(configs: ServerBaseline | Sequence[APIServerConfig | APIServer]) -> bool:
    """Whether somebody named an engine; a URL that is the default of a class of settings is nobody's choice."""
    if isinstance(configs, ServerBaseline):
        return False
    return any(
        isinstance(config, APIServer) or (config.base_url and "base_url" in config.model_fields_set)
        for config in configs
    )


def _expand(template: ServerBaseline, urls: Sequence[str]) -> list[APIServerConfig]:
    settings = template.model_dump(exclude={"base_url"})
    return [APIServerConfig(**settings, base_url=url) for url in urls]


def _open(
    config: APIServerConfig, server_class: type[APIServer], reasoning_config: ReasoningConfig | None
) -> APIServer:
    kind = _engine_class(config.server_type) if inspect.isabstract(server_class) else server_class
    return kind(config, reasoning_config=reasoning_config)


def _engine_class(server_type: str) -> type[APIServer]:
    from atroposlib.envs.server_handling.openai_server import OpenAIServer
    from atroposlib.envs.server_handling.sglang_server import SGLangServer
    from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
    from atroposlib.envs.server_handling.vllm_server import VLLMServer

    return {"openai": OpenAIServer, "vllm": VLLMServer, "sglang": SGLangServer, "trl": TrlVllmServer}[server_type]
