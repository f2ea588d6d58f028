"""Old name and methods of the scripted engine: answers looked up by the request that they belong to."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.server_handling.generation import Generation, SampledTokens
from atroposlib.envs.server_handling.scripted_server import ScriptedServer

__all__ = ["ServerHarness", "create_chat_completion", "create_completion"]


class ServerHarness(ScriptedServer):
    """A scripted engine that gives the answer that was set for a request, and else its default reply."""

    def __init__(self, default: str = "This is a scripted reply.") -> None:
        super().__init__(default=default)
        self.response_map: dict[str, Any] = {}
        self.completion_map: dict[str, Any] = {}
        self.tokens_and_logprobs_map: dict[str, Generation] = {}

    def conv_to_dictkey(self, input_message: list[dict[str, Any]]) -> str:
        """The key that an answer to this chat is kept under."""
        return "\n".join(f"{message['role']}:{message.get('content')}" for message in input_message)

    def set_desired_response(self, input_message: list[dict[str, Any]], desired_response: Any) -> None:
        """Answer this chat with this ``ChatCompletion``."""
        self.response_map[self.conv_to_dictkey(input_message)] = desired_response

    def set_desired_completion(self, input_message: str, completion: Any) -> None:
        """Answer this prompt with this ``Completion``."""
        self.completion_map[input_message] = completion

    def set_tokens_and_logprobs_response(
        self,
        prompt: str,
        prompt_tokens: list[int],
        output_tokens_list: list[list[int]],
        output_logprobs_list: list[list[float]],
        finish_reasons: list[str],
    ) -> None:
        """Answer this prompt, given as text or as ``prompt_tokens``, with these ids."""
        sampled = zip(output_tokens_list, output_logprobs_list, finish_reasons, strict=True)
        answer = Generation(list(prompt_tokens), tuple(SampledTokens(i, list(p), r) for i, p, r in sampled))
        self.tokens_and_logprobs_map[prompt] = answer
        self.tokens_and_logprobs_map[str(list(prompt_tokens))] = answer

    async def _chat_completion_wrapper(self, **kwargs: Any) -> Any:
        key = self.conv_to_dictkey(kwargs.get("messages") or [])
        return self.response_map[key] if key in self.response_map else await super()._chat_completion_wrapper(**kwargs)

    async def _completion_wrapper(self, **kwargs: Any) -> Any:
        key = kwargs.get("prompt")
        return self.completion_map[key] if key in self.completion_map else await super()._completion_wrapper(**kwargs)

    async def _generate_wrapper(self, **kwargs: Any) -> Generation:
        ids = kwargs.get("input_ids")
        key = kwargs.get("prompt") if ids is None else str(list(ids))
        if key in self.tokens_and_logprobs_map:
            return self.tokens_and_logprobs_map[key]
        return await super()._generate_wrapper(**kwargs)


def create_chat_completion(resp: str | list[str], n: int = 1, finish_reason: str = "stop") -> Any:
    """A ``ChatCompletion`` of ``n`` choices, all with this content (or one content each)."""
    from openai.types.chat import ChatCompletion

    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
        for i, text in enumerate(_per_choice(resp, n))
    ]
    return ChatCompletion.construct(
        id="scripted", object="chat.completion", created=0, model="scripted", choices=choices
    )


def create_completion(resp: str | list[str], n: int = 1, finish_reason: str = "stop") -> Any:
    """A ``Completion`` of ``n`` choices, all with this text (or one text each)."""
    from openai.types import Completion

    choices = [
        {"index": i, "text": text, "finish_reason": finish_reason, "logprobs": None}
        for i, text in enumerate(_per_choice(resp, n))
    ]
    return Completion.construct(id="scripted", object="text_completion", created=0, model="scripted", choices=choices)


def _per_choice(resp: str | list[str], n: int) -> list[str]:
    return resp if isinstance(resp, list) else [resp] * n
