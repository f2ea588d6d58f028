"""Whether a completion thinks first, and then answers."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.reward_fns.answers.thoughts import parted
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict


@registry.register(name="formatreasoning")
class FormatReasoningReward(TextReward):
    """``reward_value`` where one ``<think>…</think>`` that is not empty is followed by a response, else 0.

    ``require_thinking`` and ``require_response`` drop either half where they are off; several blocks are wrong unless
    ``allow_multiple_thinking`` is on (then the last one is followed by the response).

    Range: 0 or ``reward_value``. Source: parameters of Atropos; the format reward of DeepSeek-R1.
    """

    def __init__(
        self,
        reward_value: float = 0.5,
        require_thinking: bool = True,
        require_response: bool = True,
        allow_multiple_thinking: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.reward_value = reward_value
        self.require_thinking = require_thinking
        self.require_response = require_response
        self.allow_multiple_thinking = allow_multiple_thinking

    def judge_text(self, text: str) -> Verdict:
        """Look at both halves."""
        halves = parted(text)
        if len(halves.thoughts) > 1 and not self.allow_multiple_thinking:
            return Verdict(0.0, f"{len(halves.thoughts)} <think> blocks")
        if self.require_thinking and not any(thought.strip() for thought in halves.thoughts):
            return Verdict(0.0, "no thoughts in <think> tags")
        if self.require_response and not halves.response.strip():
            return Verdict(0.0, "no response after the thoughts")
        return Verdict(self.reward_value, f"thoughts of {sum(map(len, halves.thoughts))} characters, then a response")
