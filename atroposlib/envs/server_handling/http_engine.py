"""What engines over HTTP have in common: OpenAI's chat and text endpoints, model discovery, health, the probe.

Ids go over ``/v1/completions`` in the dialect of stock vLLM: ``prompt`` as ids, ``logprobs``, ``return_token_ids``; the
answer carries ``choices[].prompt_token_ids``, ``choices[].token_ids`` and ``choices[].logprobs.token_logprobs``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from atroposlib.envs.server_handling.completions import (
    in_portions,
    merge_choices,
    read_chat_completion,
    read_completion,
    together,
)
from atroposlib.envs.server_handling.generation import (
    BROKEN_OFF,
    EngineFacts,
    Generation,
    SampledTokens,
    TokensAndLogprobs,
    merge_generations,
)
from atroposlib.envs.server_handling.http_client import EngineBusy, EngineHttp, Shorten
from atroposlib.envs.server_handling.known_text import KNOWN_TEXT
from atroposlib.envs.server_handling.prompt_echo import ECHOED, without_echo
from atroposlib.envs.server_handling.reasoning import ReasoningConfig
from atroposlib.envs.server_handling.routes import UNKNOWN_ROUTE, check_routes
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable, InferenceError, NotTokenExact

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROBE_PROMPT = [1]
HEALTH_TIMEOUT_S = 10.0
MODELS_IN_ERROR = 20


class HttpEngine(APIServer):
    """An engine at ``config.base_url``. Requests whose arguments the engine does not know are the engine's to refuse.

    Raises on use:
        ConfigError: there is no URL, no key where one was named, or a model has to be chosen from several.
    """

    health_path = "models"
    """Asked by GET to see whether the engine is up; a leading slash starts at the root of the host."""

    has_own_dialect = False
    """Whether the engine has a wire of its own for ids, tried where it does not know the one of stock vLLM."""

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        super().__init__(config, reasoning_config)
        if not config.base_url:
            raise ConfigError(
                f"the engine has no URL; set {config.spelled('base_url')}, such as http://localhost:9001/v1"
            )
        self._url = config.base_url
        self._root = "{0.scheme}://{0.netloc}".format(urlsplit(config.base_url))
        key = config.resolve_api_key()
        self._http = EngineHttp({"authorization": f"Bearer {key}"} if key else {}, timeout_s=float(config.timeout))
        self._looking_up_model = asyncio.Lock()
        self._facts: EngineFacts | None = None
        self._reading_known_text = asyncio.Lock()
        self._has_read_known_text = False
        self._known_text_ids: Sequence[int] | None = None
        self._speaks_own_dialect = False
        self._why_down = ""

    # up, which model, which abilities

    async def wait_until_ready(self) -> None:
        """Return when the engine answers.

        Raises:
            EngineUnavailable: it did not within ``config.wait_s`` seconds.
        """
        if not self.config.health_check:
            return
        deadline, delay = time.monotonic() + self.config.wait_s, 0.1
        await self.check_server_status_task()
        if not self.server_healthy and self.config.wait_s:
            logger.info("waiting up to %g s for the engine at %s: %s", self.config.wait_s, self._url, self._why_down)
        while not self.server_healthy:
            if time.monotonic() >= deadline:
                raise EngineUnavailable(
                    f"no engine answered at {self._url} within {self.config.wait_s:g} s; start it, or correct "
                    f"{self.config.spelled('base_url')} ({self.config.spelled('wait_s')} sets how long to wait): "
                    f"{self._why_down}"
                )
            await asyncio.sleep(delay)
            delay = min(2.0, delay * 2)
            await self.check_server_status_task()

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        """Ask once whether the engine answers; generates nothing and costs nothing."""
        try:
            await self._http.get(self._at(self.health_path), HEALTH_TIMEOUT_S)
        except EngineRefused:
            self.server_healthy = True  # somebody answered; what it thinks of real requests is another matter
        except EngineUnavailable as error:
            self._why_down = str(error)
            self.server_healthy = False
        else:
            self.server_healthy = True

    async def probe(self) -> EngineFacts:
        """Find out, by one request for one token, whether the engine is token-exact. Later calls remember.

        Raises:
            EngineUnavailable: the engine does not answer.
            EngineRefused: it wants another key (401, 403).
            ConfigError: it knows neither completions nor chats, and its health is not to be left alone.
        """
        if self._facts is None:
            model = await self._model()
            reason = await self._why_not_token_exact(model)
            card = await self._card(model)
            longest, root = card.get("max_model_len"), card.get("root")
            self._facts = EngineFacts(
                token_exact=not reason,
                reason=reason,
                model_name=model,
                max_model_len=longest if isinstance(longest, int) else None,
                model_root=root if isinstance(root, str) else "",
                engine=self.config.server_type,
            )
        return self._facts

    async def ids_of_known_text(self) -> Sequence[int] | None:
        """By one request for one token; an engine that fails at it, or tells nothing, is not asked again."""
        async with self._reading_known_text:
            if not self._has_read_known_text:
                ids = await self._ids_or_none(KNOWN_TEXT)
                self._known_text_ids, self._has_read_known_text = ids, True
        return self._known_text_ids

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        await self._http.close()

    async def _why_not_token_exact(self, model: str) -> str:
        try:
            answer = await self.generate(input_ids=PROBE_PROMPT, max_tokens=1, temperature=1.0)
        except NotTokenExact as error:
            return str(error)
        except EngineRefused as error:
            if error.status in (401, 403):
                raise
            if error.status == 404 and model in str(error):
                await self._check_served(model)
            elif error.status in UNKNOWN_ROUTE and self.config.health_check:
                await check_routes(self._http, self.config, model)
            return f"it refused a completion from ids: {error}"
        if answer.prompt_ids != PROBE_PROMPT:
            return f"it was sent the ids {PROBE_PROMPT} and consumed {list(answer.prompt_ids[:8])}"
        return ""

    async def _ids_or_none(self, text: str) -> Sequence[int] | None:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):  # a check is not worth waiting for
                ids = await self._ids_of(text)
        except (InferenceError, LookupError, TypeError, TimeoutError) as error:
            logger.debug("%s does not tell the ids of a text: %s", self._url, error)
            return None
        return ids if ids and all(type(number) is int for number in ids) else None

    async def _ids_of(self, text: str) -> Sequence[int]:
        """The ids that the engine makes of a text, in the way that costs it least."""
        return (await self._generate_wrapper(prompt=text, max_tokens=1, temperature=1.0)).prompt_ids

    async def _model(self) -> str:
        if not self.config.has_model_name:
            async with self._looking_up_model:
                if not self.config.has_model_name:
                    self.config.model_name = await self._discover_model()
        return self.config.model_name

    async def _discover_model(self) -> str:
        models = await self._models()
        if models is None:
            return self.config.model_name
        roots = {str(model.get("root") or model["id"]) for model in models}  # names of one model share its root
        if len(roots) > 1:
            choose = f"choose with {self.config.spelled('model_name')}"
            raise ConfigError(f"{self._url} serves {len(roots)} models; {choose}: {_names(models)}")
        if not models:
            where = self.config.spelled("base_url")
            raise ConfigError(f"{self._url} serves no model; load one there, or correct {where}")
        return str(models[0]["id"])

    async def _check_served(self, model: str) -> None:
        """Raises: ConfigError where the engine lists its models, and this is none of them."""
        models = await self._models()
        if models and all(entry["id"] != model for entry in models):
            asked = self.config.spelled("model_name")
            raise ConfigError(f"{self._url} does not serve {asked} {model!r}; it serves {_names(models)}")

    async def _models(self) -> list[dict[str, Any]] | None:
        """What the engine lists; None where it lists nothing at all, not even that there is none."""
        try:
            answer = await self._http.get(f"{self._url}/models", HEALTH_TIMEOUT_S)
        except EngineRefused as error:
            if error.status in (401, 403):
                raise
            return None
        listed = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(listed, list):
            return None
        return [model for model in listed if isinstance(model, dict) and model.get("id")]

    async def _card(self, model: str) -> dict[str, Any]:
        """What the engine lists about a model; empty where it lists nothing."""
        return next((entry for entry in await self._models() or () if entry["id"] == model), {})

    # the four requests

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        if self.reasoning_config is not None:
            extra = self.reasoning_config.build_extra_body(self._url)
            kwargs["extra_body"] = {**(extra or {}), **(kwargs.get("extra_body") or {})}
        answer: ChatCompletion = await self._choices("chat/completions", read_chat_completion, kwargs)
        return answer

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        answer: Completion = await self._choices("completions", read_completion, kwargs)
        return answer

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> TokensAndLogprobs:
        return (await self._generate_wrapper(**kwargs)).as_lists()

    async def _generate_wrapper(self, **kwargs: Any) -> Generation:
        async def ask(each: dict[str, Any]) -> Generation:
            return await self._generate_once(**each)

        return await self._all_of(kwargs, ask, merge_generations, lambda answer: len(answer.completions))

    async def _generate_once(self, **kwargs: Any) -> Generation:
        """One request; an engine may answer ``n > 1`` with fewer."""
        prompt = prompt_of(kwargs)
        if self._speaks_own_dialect:
            return await self._generate_in_own_dialect(prompt, kwargs)
        try:
            return await self._generate_as_stock(prompt, kwargs)
        except EngineRefused as refused:
            if refused.status not in UNKNOWN_ROUTE or not self.has_own_dialect:
                raise
            with contextlib.suppress(EngineRefused):
                answer = await self._generate_in_own_dialect(prompt, kwargs)
                self._speaks_own_dialect = True
                return answer
            raise

    async def _generate_in_own_dialect(self, prompt: Any, kwargs: dict[str, Any]) -> Generation:
        """A completion in ids over a wire that only this engine has; see ``has_own_dialect``."""
        raise NotImplementedError

    async def _generate_as_stock(self, prompt: Any, kwargs: dict[str, Any]) -> Generation:
        asked = {"logprobs": 0, "return_token_ids": True}
        answer = await self._post("completions", {**kwargs, **asked, "prompt": prompt}, without_echo(prompt))
        choices = self._choices_of(answer)
        echoed = choices[0].get("prompt_token_ids") or answer.get("prompt_token_ids")
        echoed = prompt if echoed == ECHOED else echoed
        return self._generation(prompt, echoed, [self._sampled(choice, answer) for choice in choices])

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        prompt, top_k = prompt_of(kwargs), max(1, kwargs.pop("top_k", None) or 1)
        asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k, "return_token_ids": True}
        answer = await self._post("completions", {**kwargs, **asked, "prompt": prompt})
        choice = self._choices_of(answer)[0]
        if choice.get("prompt_logprobs") is None:
            raise NotTokenExact(f"{self._url} does not score a given text; {self.token_exact_hint}")
        ranked = [_ranked(position or {})[:top_k] for position in choice["prompt_logprobs"]]
        ids = choice.get("prompt_token_ids")
        return {
            "prompt_tokens": ids if ids is not None else list(prompt),
            "prompt_topk_token_ids": [[number for number, _ in position] for position in ranked],
            "prompt_topk_logprobs": [[logprob for _, logprob in position] for position in ranked],
        }

    def _choices_of(self, answer: Any) -> list[dict[str, Any]]:
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not choices:
            raise EngineUnavailable(f"{self._url} answered without choices: {str(answer)[:500]}")
        return list(choices)

    def _generation(self, prompt: Any, echoed: Sequence[int] | None, sampled: list[SampledTokens]) -> Generation:
        """Put an answer together; without the engine's echo the prompt is what was sent, if that was ids."""
        if echoed is None and isinstance(prompt, str):
            raise NotTokenExact(f"{self._url} does not tell the ids of a text prompt; {self.token_exact_hint}")
        broken = next((each.finish_reason for each in sampled if each.finish_reason in BROKEN_OFF), None)
        if broken is not None:
            raise EngineBusy(f"{self._url} broke off the request (finish_reason {broken!r})")
        return Generation(echoed if echoed is not None else prompt, tuple(sampled), echoed is not None)

    def _sampled(self, choice: dict[str, Any], answer: dict[str, Any]) -> SampledTokens:
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or logprobs is None:
            missing = "token ids" if ids is None else "logprobs"
            raise NotTokenExact(f"{self._url} answers without the {missing} it sampled; {self.token_exact_hint}")
        return SampledTokens(ids, logprobs, choice.get("finish_reason") or "", policy_version(choice, answer))

    # the wire

    async def _choices(self, path: str, read: Any, kwargs: dict[str, Any]) -> Any:
        async def ask(each: dict[str, Any]) -> Any:
            return read(await self._post(path, each))

        return await self._all_of(kwargs, ask, merge_choices, lambda answer: len(answer.choices))

    async def _all_of(
        self,
        kwargs: dict[str, Any],
        ask: Callable[[dict[str, Any]], Coroutine[Any, Any, T]],
        merge: Callable[[Sequence[T]], T],
        count: Callable[[T], int],
    ) -> T:
        """Ask for all ``n`` choices, one by one where the engine gives only one at a time."""
        singly = in_portions(kwargs, 1)
        if len(singly) > 1 and self.config.n_kwarg_is_ignored:
            return merge(await together(map(ask, singly)))
        answer = await ask(kwargs)
        missing = singly[count(answer) :]
        if not missing:
            return answer
        self.config.n_kwarg_is_ignored = True
        return merge([answer, *await together(map(ask, missing))])

    async def _post(self, path: str, kwargs: dict[str, Any], shorten: Shorten | None = None) -> Any:
        body = {name: value for name, value in kwargs.items() if value is not None}
        timeout = body.pop("timeout", None)
        extra = body.pop("extra_body", None) or {}
        body["model"] = await self._model()
        return await self._http.post(self._at(path), {**body, **extra}, timeout, shorten)

    def _at(self, path: str) -> str:
        return f"{self._root}{path}" if path.startswith("/") else f"{self._url}/{path}"


def policy_version(choice: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """The weights that sampled a choice: ``weight_version(s)`` or ``policy_version`` of the choice or the answer."""
    spans = choice.get("weight_versions")
    if spans:
        first, last = str(spans[0].get("version")), str(spans[-1].get("version"))
        return first if first == last else f"{first}..{last}"
    for holder in (choice, answer):
        for name in ("weight_version", "policy_version"):
            if holder.get(name) is not None:
                return str(holder[name])
    return None


def _names(models: list[dict[str, Any]]) -> str:
    names = [str(model["id"]) for model in models]
    return ", ".join(names[:MODELS_IN_ERROR]) + (", …" if len(names) > MODELS_IN_ERROR else "")


def _ranked(position: dict[str, Any]) -> list[tuple[int, float]]:
    """The ids of one position of vLLM's ``prompt_logprobs``, the likeliest first."""
    scored = [(int(number), float(entry["logprob"])) for number, entry in position.items()]
    return sorted(scored, key=lambda each: -each[1])


def prompt_of(kwargs: dict[str, Any]) -> Any:
    """Take the prompt out of the arguments: ``input_ids``, else ``prompt``."""
    prompt = kwargs.pop("prompt", None)
    ids = kwargs.pop("input_ids", None)
    kwargs.pop("messages", None)
    if ids is None and prompt is None:
        raise ConfigError("a completion in tokens needs input_ids=[...] or prompt=")
    return prompt if ids is None else ids
