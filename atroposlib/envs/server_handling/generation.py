"""What an engine tells about the tokens it consumed and sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atroposlib.errors import NotTokenExact

TokensAndLogprobs = tuple[list[int], list[list[int]], list[list[float | None]], list[str]]
"""Prompt ids; then per completion its ids, its logprobs and its finish reason."""


class PromptIds(list[int]):
    """The ids of a prompt, and the same as JSON, so that a long history is written once and not once a turn."""

    def __init__(self, ids: Iterable[int], json: bytes) -> None:
        super().__init__(ids)
        self.json = json
        """``[1,2,3]``, without blanks."""


@dataclass(frozen=True)
class SampledTokens:
    """One completion: the ids the engine sampled and the logprob of each, as the engine gave them, unchecked."""

    ids: list[int]
    logprobs: list[float | None]
    finish_reason: str
    policy_version: str | None = None
    """The weights that sampled it, where the engine says so; ``"a..b"`` if they changed on the way."""


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt of ids: what was consumed and, per completion, what was sampled."""

    prompt_ids: list[int]
    completions: tuple[SampledTokens, ...]
    prompt_ids_from_engine: bool = True
    """False where the engine does not echo the prompt, so that ``prompt_ids`` is only what was sent."""

    def as_lists(self) -> TokensAndLogprobs:
        """The answer in the shape of ``tokens_and_logprobs_completion``."""
        told = self.completions
        return self.prompt_ids, [c.ids for c in told], [c.logprobs for c in told], [c.finish_reason for c in told]

    def check_consumed(self, sent: Sequence[int]) -> None:
        """Raise ``NotTokenExact``, naming the first difference, where the engine consumed other ids than were sent."""
        consumed = self.prompt_ids
        if consumed is sent or consumed == sent:
            return
        pairs = enumerate(zip(sent, consumed, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(sent), len(consumed)))
        raise NotTokenExact(
            f"the engine consumed {len(consumed)} ids where {len(sent)} were sent, other ones from position {first} "
            f"on: {list(consumed[first : first + 5])} instead of {list(sent[first : first + 5])}"
        )


@dataclass(frozen=True)
class EngineFacts:
    """What one probe found out about an engine."""

    token_exact: bool
    """It consumes ids and answers with the ids and logprobs it sampled."""
    reason: str = ""
    """Why it is not token-exact; empty if it is."""
    model_name: str = ""
    max_model_len: int | None = None
    """The longest sequence in tokens, prompt and completion together, where the engine says so."""
    model_root: str = ""
    """The folder or Hub name that the model was loaded from, where the engine says so; its tokenizer is there too."""
    engine: str = ""
    """The dialect that was spoken: ``openai``, ``vllm``, ``sglang``, ``trl`` or ``scripted``."""
