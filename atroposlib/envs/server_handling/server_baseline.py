"""How an engine is described, and the calls that every engine client offers.

An ``APIServer`` is one engine. It bounds the requests in flight, repeats a request only where that can help (no
connection, 408, 429, 5xx), and measures. What differs between engines is one file each: they implement the four
``_…_wrapper`` coroutines over their wire.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from atroposlib.envs.server_handling.completions import in_portions, load_openai_types, together
from atroposlib.envs.server_handling.generation import (
    EngineFacts,
    Generation,
    PromptIds,
    SampledTokens,
    TokensAndLogprobs,
    merge_generations,
)
from atroposlib.envs.server_handling.http_client import EngineBusy
from atroposlib.envs.server_handling.reasoning import ReasoningConfig
from atroposlib.envs.server_handling.slots import RequestSlots
from atroposlib.errors import ConfigError, EngineUnavailable, NotTokenExact

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

__all__ = ["APIServer", "APIServerConfig", "OpenaiConfig", "ReasoningConfig", "ServerBaseline", "TokensAndLogprobs"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Split = Literal["train", "eval"]

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 20.0
AVOID_S = 15.0


class ServerBaseline(BaseModel):
    """What all engines share. Alone it stands for up to four local engines, on the ports 9004 to 9007."""

    model_config = ConfigDict(protected_namespaces=(), validate_assignment=True)

    timeout: int = Field(default=1200, ge=1, description="Seconds one request may take.")
    num_max_requests_at_once: int = Field(
        default=512, ge=1, description="Requests in flight at one engine in training."
    )
    num_requests_for_eval: int = Field(default=64, ge=1, description="Requests in flight at one engine in evaluation.")
    model_name: str = Field(
        default="default", description="Model to ask for; 'default' takes the one that the engine lists in /v1/models."
    )
    rolling_buffer_length: int = Field(default=1000, ge=1, description="How many request timings the metrics cover.")
    server_type: Literal["openai", "trl", "sglang", "vllm"] = Field(
        default="openai", description="Wire of the engine, where it has one of its own."
    )
    tokenizer_name: str = Field(default="none", description="Tokenizer of the model; 'none' means model_name.")
    max_retries: int = Field(default=4, ge=0, description="Repeats of a request after a failure that may pass.")
    wait_s: float = Field(default=300.0, ge=0, description="Seconds to wait for the engine to come up.")

    @field_validator("model_name", mode="before")
    @classmethod
    def _name_for_none(cls, value: Any) -> Any:
        return "default" if value in (None, "") else value

    @property
    def has_model_name(self) -> bool:
        """Whether a model was named, rather than left to the engine."""
        return self.model_name != "default"

    def spelled(self, setting: str) -> str:
        """What messages call one of these settings, so that it can be found and changed."""
        return f"--openai.{setting}"


class APIServerConfig(ServerBaseline):
    """One engine. A URL without a path gets ``/v1``; the key is never part of a ``repr``."""

    api_key: str | None = Field(default="", repr=False, description="Key of the engine, sent as a bearer token.")
    api_key_env: str | None = Field(default=None, description="Environment variable that holds the key.")
    base_url: str | None = Field(default="", description="URL of the engine, such as http://localhost:9001/v1.")
    n_kwarg_is_ignored: bool = Field(default=False, description="The engine answers n > 1 with one completion.")
    health_check: bool = Field(default=True, description="Wait at the start until the engine answers.")

    @field_validator("base_url", mode="after")
    @classmethod
    def _complete_url(cls, value: str | None) -> str | None:
        if not value:
            return value
        url = value if "://" in value else f"http://{value}"
        url = url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    def resolve_api_key(self) -> str:
        """The key itself, from ``api_key`` or the variable that ``api_key_env`` names; empty if there is none.

        Raises:
            ConfigError: the named variable is not set.
        """
        if self.api_key:
            return self.api_key
        if not self.api_key_env:
            return ""
        key = os.environ.get(self.api_key_env, "")
        if not key:
            raise ConfigError(
                f"{self.spelled('api_key_env')} names {self.api_key_env}, which is not set in the environment"
            )
        return key


OpenaiConfig = APIServerConfig
"""Old name of ``APIServerConfig``."""


class APIServer(ABC):
    """One engine, ready to be asked from any number of coroutines.

    Subclasses given to ``ServerManager`` are built as ``cls(config, reasoning_config=...)``.
    """

    token_exact_hint = (
        "use an engine that answers /v1/completions with ids (vLLM with return_token_ids, SGLang, TRL's vLLM "
        "server, or `python -m trainer.serve`)"
    )

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        load_openai_types()
        self.config = config
        self.reasoning_config = reasoning_config
        self.sem = RequestSlots(config.num_max_requests_at_once)
        self.eval_sem = RequestSlots(config.num_requests_for_eval)
        self.max_n_completions: int | None = None
        """Most completions that one request in tokens asks for, where its ``ServerManager`` says so."""
        self.server_healthy = True
        self._failed_at = -math.inf
        self._said_that_it_fails = False
        self.request_timings: deque[float] = deque(maxlen=config.rolling_buffer_length)
        self.eval_request_timings: deque[float] = deque(maxlen=config.rolling_buffer_length)
        self.attempts_list: deque[int] = deque(maxlen=config.rolling_buffer_length)
        self.eval_attempts_list: deque[int] = deque(maxlen=config.rolling_buffer_length)

    @property
    def avoided(self) -> bool:
        """Whether the engine failed so lately that a request should rather go to another one."""
        return not self.server_healthy and time.monotonic() - self._failed_at < AVOID_S

    # what an engine implements

    @abstractmethod
    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        """Ask once, without generating, whether the engine answers; set ``server_healthy`` accordingly."""

    @abstractmethod
    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        """One chat request."""

    @abstractmethod
    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        """One text request."""

    @abstractmethod
    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> TokensAndLogprobs:
        """One request of ids (``input_ids``) or text (``prompt``), answered in ids."""

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        raise NotTokenExact(f"{type(self).__name__} cannot score a given text; {self.token_exact_hint}")

    async def _generate_wrapper(self, **kwargs: Any) -> Generation:
        if isinstance(kwargs.get("input_ids"), PromptIds):
            kwargs["input_ids"] = kwargs["input_ids"].tolist()
        prompt, ids, logprobs, reasons = await self._tokens_and_logprobs_completion_wrapper(**kwargs)
        sampled = (SampledTokens(*each) for each in zip(ids, logprobs, reasons, strict=True))
        return Generation(prompt, tuple(sampled))

    async def probe(self) -> EngineFacts:
        """Find out once whether the engine is token-exact. A client that does not override this is believed."""
        return EngineFacts(True, model_name=self.config.model_name, engine=self.config.server_type)

    async def ids_of_known_text(self) -> Sequence[int] | None:
        """The ids that the engine itself makes of ``KNOWN_TEXT``; ``None`` where it does not tell. Asked once."""
        return None

    async def wait_until_ready(self) -> None:  # noqa: B027 - an engine may have nothing to wait for
        """Return when the engine answers; does nothing where the engine cannot be asked."""

    async def close(self) -> None:  # noqa: B027 - nor anything to close
        """Close what the client holds open."""

    # what callers use

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Complete a chat; arguments as in OpenAI's API, and ``split="train" | "eval"``."""
        return await self._call(self._chat_completion_wrapper, kwargs)

    async def completion(self, **kwargs: Any) -> Completion:
        """Complete a text; arguments as in OpenAI's API, and ``split="train" | "eval"``."""
        return await self._call(self._completion_wrapper, kwargs)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> TokensAndLogprobs:
        """Complete ``input_ids`` (or ``prompt``) and return ids: (prompt, [sampled], [logprobs], [finish reasons])."""
        return await self._call(self._tokens_and_logprobs_completion_wrapper, kwargs)

    async def generate(self, **kwargs: Any) -> Generation:
        """Like ``tokens_and_logprobs_completion``, with everything the engine told about the sampled tokens.

        More than ``max_n_completions`` are asked for by several requests.
        """
        portions = in_portions(kwargs, self.max_n_completions)
        if len(portions) == 1:
            return await self._call(self._generate_wrapper, kwargs)
        return merge_generations(await together(self._call(self._generate_wrapper, each) for each in portions))

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """Score a text: ``prompt_tokens``, ``prompt_topk_token_ids[pos][k]``, ``prompt_topk_logprobs[pos][k]``."""
        return await self._call(self._get_logprobs_wrapper, kwargs)

    async def update_weight(self, weight: float) -> None:
        """Use this share of the training slots (an environment's share of the trainer's batch)."""
        self.sem.set_weight(weight)

    async def wandb_metrics(
        self, metrics_dict: dict[str, Any] | None = None, server_name: str | None = None
    ) -> dict[str, Any]:
        """Add the timings of the last requests, under ``server/<name>_…``, and start counting attempts anew."""
        metrics = {} if metrics_dict is None else metrics_dict
        prefix = f"server/{server_name or 'server'}"
        _describe_timings(metrics, f"{prefix}_request_time", self.request_timings)
        _describe_timings(metrics, f"{prefix}_eval_request_time", self.eval_request_timings)
        _describe_attempts(metrics, f"{prefix}_average_num_attempts", self.attempts_list)
        _describe_attempts(metrics, f"{prefix}_eval_average_num_attempts", self.eval_attempts_list)
        return metrics

    # the one path of a request

    async def _call(self, request: Callable[..., Awaitable[T]], kwargs: dict[str, Any]) -> T:
        evaluating = kwargs.pop("split", "train") == "eval"
        slots = self.eval_sem if evaluating else self.sem
        attempts = 0
        while True:
            attempts += 1
            try:
                async with slots:
                    started = time.monotonic()
                    answer = await request(**kwargs)
            except EngineBusy as error:
                if attempts > self.config.max_retries:
                    self.server_healthy, self._failed_at = False, time.monotonic()
                    raise EngineUnavailable(f"{error} ({attempts} attempts)") from error
                # said once until an answer comes: every rollout under way meets the same
                level, self._said_that_it_fails = logging.DEBUG if self._said_that_it_fails else logging.WARNING, True
                logger.log(level, "attempt %d failed, trying again: %s", attempts, error)
                await asyncio.sleep(_delay(attempts, error.retry_after_s))
                continue
            self.server_healthy, self._said_that_it_fails = True, False
            (self.eval_request_timings if evaluating else self.request_timings).append(time.monotonic() - started)
            (self.eval_attempts_list if evaluating else self.attempts_list).append(attempts)
            return answer


def _delay(attempts: int, asked_for_s: float | None) -> float:
    """Twice as long each time, a random half of it, so that many rollouts do not return together."""
    longest = min(LONGEST_DELAY_S, FIRST_DELAY_S * 4 ** (attempts - 1))
    return max(min(asked_for_s or 0.0, 2 * LONGEST_DELAY_S), random.uniform(longest / 2, longest))


def _describe_timings(metrics: dict[str, Any], name: str, timings: deque[float]) -> None:
    if timings:
        metrics[f"{name}_avg"] = statistics.fmean(timings)
        metrics[f"{name}_std"] = statistics.pstdev(timings)
        metrics[f"{name}_99p"] = sorted(timings)[math.ceil(0.99 * len(timings)) - 1]


def _describe_attempts(metrics: dict[str, Any], name: str, attempts: deque[int]) -> None:
    if attempts:
        metrics[name] = statistics.fmean(attempts)
        attempts.clear()
