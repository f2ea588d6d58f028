"""A Hugging Face model in this process, as an engine: chat only, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from atroposlib.envs.server_handling.completions import read_chat_completion
from atroposlib.envs.server_handling.generation import EngineFacts, TokensAndLogprobs
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig
from atroposlib.errors import ConfigError, EngineRefused, NotTokenExact
from atroposlib.hub import is_only_here, why_absent

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

CHAT_ONLY = "a model in this process answers chats only; `python -m trainer.serve` serves one with its token ids"
LONGEST_ANSWER = 1024
PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
"""What ``generate`` does not know; 0 asks for nothing."""
KNOWN = PENALTIES | {
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "stop", "seed",
    "chat_template_kwargs",
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled; ``arguments`` are those of ``generate``. With a seed each choice has luck of its own."""

    longest: int
    stops: tuple[str, ...]
    seed: int | None
    template: Mapping[str, Any]
    """Variables of the chat template."""
    arguments: Mapping[str, Any]


class TransformersServer(APIServer):
    """Answers with ``model.generate`` in a thread. A last message of the assistant is gone on from."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        super().__init__(APIServerConfig(model_name=name, health_check=False))
        self.tokenizer = tokenizer
        self._model = model
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    def load(cls, name: str) -> Self:
        """Load a folder, or a name of the cache or the hub; takes a while. Raises: ConfigError."""
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        if problem := why_absent(name):
            raise ConfigError(f"model_name: {problem}")
        here = is_only_here(name)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=here)
            model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", local_files_only=here).eval()
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"model_name: {name} cannot be loaded: {error}") from error
        if not tokenizer.chat_template:
            raise ConfigError(f"model_name: {name} has no chat template")
        return cls(model.to(_best_device()), tokenizer, name)

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        """It is always there."""

    async def probe(self) -> EngineFacts:
        """It tells no token ids."""
        return EngineFacts(False, CHAT_ONLY, model_name=self.config.model_name, engine="transformers")

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        async with self._one_at_a_time:
            answer = await asyncio.to_thread(self._answer, kwargs)
        return read_chat_completion(answer)

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        raise NotTokenExact(CHAT_ONLY)

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> TokensAndLogprobs:
        raise NotTokenExact(CHAT_ONLY)

    def _answer(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        asked = read_sampling(kwargs)
        prompt = self._render(kwargs["messages"], kwargs.get("tools"), asked.template)
        choices = [self._sample(prompt, asked, index) for index in range(kwargs.get("n") or 1)]
        used, sampled = prompt["input_ids"].shape[1], sum(len(ids) for ids in choices)
        return {
            "id": "transformers",
            "object": "chat.completion",
            "created": 0,
            "model": self.config.model_name,
            "choices": [self._choice(index, ids, asked) for index, ids in enumerate(choices)],
            "usage": {"prompt_tokens": used, "completion_tokens": sampled, "total_tokens": used + sampled},
        }

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, variables: Mapping[str, Any]) -> Any:
        opened = messages[-1]["role"] == "assistant"
        return self.tokenizer.apply_chat_template(
            list(messages),
            **variables,
            tools=tools,
            add_generation_prompt=not opened,
            continue_final_message=opened,
            return_tensors="pt",
            return_dict=True,
        ).to(self._model.device)

    def _sample(self, prompt: Any, asked: Sampling, index: int) -> list[int]:
        import torch

        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        stops = {"stop_strings": list(asked.stops), "tokenizer": self.tokenizer} if asked.stops else {}
        with torch.inference_mode(), torch.random.fork_rng(enabled=asked.seed is not None):
            if asked.seed is not None:
                torch.manual_seed(asked.seed + index)
            ids = self._model.generate(
                **prompt, max_new_tokens=asked.longest, pad_token_id=pad, **stops, **asked.arguments
            )
        sampled: list[int] = ids[0, prompt["input_ids"].shape[1] :].tolist()
        return sampled

    def _choice(self, index: int, ids: Sequence[int], asked: Sampling) -> dict[str, Any]:
        whole = self.tokenizer.decode(ids, skip_special_tokens=True)
        text = min((whole.partition(stop)[0] for stop in asked.stops), key=len, default=whole)
        ended = (bool(ids) and ids[-1] in self._ends()) or text != whole
        message = {"role": "assistant", "content": text}
        reason = "length" if len(ids) >= asked.longest and not ended else "stop"
        return {"index": index, "message": message, "finish_reason": reason, "logprobs": None}

    def _ends(self) -> set[int]:
        end = self._model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        return {*ends, self.tokenizer.eos_token_id}


def read_sampling(kwargs: Mapping[str, Any]) -> Sampling:
    """How a chat request is to be sampled.

    Raises: EngineRefused for what ``generate`` cannot do, by name.
    """
    extra = {name: value for name, value in (kwargs.get("extra_body") or {}).items() if value is not None}
    asked = {name: value for name, value in kwargs.items() if name in KNOWN and value is not None} | extra
    for name, value in asked.items():
        if name not in KNOWN or (name in PENALTIES and value != 0):
            raise EngineRefused(
                f"{name} has no effect on a model in this process (engine: hf); leave it out, or serve the model"
            )
    longest = asked.pop("max_tokens", None) or LONGEST_ANSWER
    stops, seed, template = asked.pop("stop", ()), asked.pop("seed", None), asked.pop("chat_template_kwargs", {})
    arguments = {name: value for name, value in asked.items() if name not in PENALTIES}
    if arguments.get("temperature") == 0:
        arguments |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "min_p": None}
    else:
        arguments |= {"do_sample": True, "top_k": max(0, arguments.get("top_k", 0))}
    return Sampling(longest, (stops,) if isinstance(stops, str) else tuple(stops), seed, template, arguments)


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
