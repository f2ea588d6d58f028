"""A rollout against an engine that tells no ids: good for its text, never for training."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.server_handling.sequence_node import SequenceNode
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.token_graph import MASKED, PROMPT_LOGPROB
from atroposlib.errors import NotTokenExact

PLACEHOLDER_IDS = range(128)


class DummyManagedServer:
    """Passes requests on. Where ``allow_placeholders`` says so, each completion is recorded with placeholder ids.

    Placeholders are masked throughout and marked ``trainable: False``, so that no trainer learns from them.
    """

    def __init__(
        self,
        server: APIServer,
        tokenizer: Any = None,
        track_tree: bool = False,
        *,
        allow_placeholders: bool = False,
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.track_tree = track_tree
        self.allow_placeholders = allow_placeholders
        self._texts: list[tuple[str, str]] = []

    async def chat_completion(self, **kwargs: Any) -> Any:
        """Complete a chat at the engine."""
        answer = await self.server.chat_completion(**kwargs)
        prompt = "".join(f"{m.get('role')}:{m.get('content')}\n" for m in kwargs.get("messages", []))
        self._texts += [(prompt + (c.message.content or ""), c.finish_reason) for c in answer.choices]
        return answer

    async def completion(self, **kwargs: Any) -> Any:
        """Complete a text at the engine."""
        answer = await self.server.completion(**kwargs)
        self._texts += [(f"{kwargs.get('prompt', '')}{c.text}", c.finish_reason) for c in answer.choices]
        return answer

    def get_state(self) -> dict[str, Any]:
        """The texts of all completions, with placeholder ids.

        Raises:
            NotTokenExact: placeholders are not allowed.
        """
        if not self.allow_placeholders:
            raise NotTokenExact(
                f"the engine tells no token ids, and placeholders are not allowed; {self.server.token_exact_hint}"
            )
        nodes = [_placeholder(text, reason) for text, reason in self._texts]
        if self.track_tree:
            sequences = {node.full_text: node for node in nodes}
            return {"sequences": sequences, "tree": sequences}
        return {"nodes": nodes}

    def reset(self) -> None:
        """Forget everything."""
        self._texts.clear()


def _placeholder(text: str, finish_reason: str) -> SequenceNode:
    length = len(PLACEHOLDER_IDS)
    return SequenceNode(
        full_text=text,
        tokens=list(PLACEHOLDER_IDS),
        masked_tokens=[MASKED] * length,
        logprobs=[PROMPT_LOGPROB] * length,
        metadata={"finish_reason": finish_reason, "dummy_tokens": True, "trainable": False},
    )
