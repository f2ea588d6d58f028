"""A rollout as a graph of turns, each node holding only the ids that it adds.

A node is either *context* (rendered messages: prompts, tool results) or *sampled* (what the engine generated, with the
logprob of each id). A sequence is the walk from the root to a node, so prompt + completion is a concatenation by
construction: nothing is padded, cut or encoded twice. A prompt that extends a walk continues it; any other prompt
forks where it differs. What an engine sampled is checked when it is added (``check_sampled``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import orjson

from atroposlib.envs.server_handling.generation import BROKEN_OFF, PromptIds, SampledTokens
from atroposlib.errors import RolloutInvalid

MASKED = -100
"""Stands in a mask for an id that is not trained on, on the wire and only there."""
PROMPT_LOGPROB = 1.0
"""Stands for the logprob of an id that was not sampled, on the wire and only there."""

HIGHEST_LOGPROB = 1e-3
"""Above 0 by more than rounding, a number is no logprob."""
WANTED_ENGINE = (
    "--openai.base_url has to lead to an engine that gives one logprob with each id that it samples (vLLM, SGLang or "
    "`python -m trainer.serve`), and --openai.server_type has to name its wire"
)


@dataclass(eq=False)
class Node:
    """One stretch of ids. ``logprobs`` is ``None`` for context."""

    ids: list[int]
    text: str
    parent: Node | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    policy_version: str | None = None
    children: list[Node] = field(default_factory=list)
    end: int = 0
    """How many ids a walk from the root up to and including this node holds."""

    @cached_property
    def json(self) -> bytes:
        """The ids as they stand inside a JSON list."""
        return orjson.dumps(self.ids)[1:-1]

    @property
    def is_sampled(self) -> bool:
        """Whether the engine generated these ids."""
        return self.logprobs is not None

    def path(self) -> list[Node]:
        """The walk from the root to this node, the (empty) root left out."""
        walk, node = [], self
        while node.parent is not None:
            walk.append(node)
            node = node.parent
        return walk[::-1]


@dataclass(frozen=True)
class TokenSequence:
    """A walk as the trainer gets it: three lists of one length. ``mask`` and ``logprobs`` as ``MASKED`` etc. say."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    text: str
    nodes: tuple[Node, ...]


class TokenGraph:
    """All turns of one rollout."""

    def __init__(self) -> None:
        self.root = Node(ids=[], text="")
        self.completions = 0
        """How many there are."""

    def longest_match(self, ids: Sequence[int]) -> Node:
        """The deepest node whose walk is a prefix of ``ids``; the root if there is no other."""
        wanted = list(ids)
        best, open_nodes = self.root, [self.root]
        while open_nodes:
            node = open_nodes.pop()
            if node.end > best.end:
                best = node
            open_nodes += [c for c in node.children if wanted[node.end : node.end + len(c.ids)] == c.ids]
        return best

    def longest_text_match(self, text: str) -> Node:
        """The deepest node whose walk, as text, is a prefix of ``text``."""
        best, best_length, open_nodes = self.root, 0, [(self.root, 0)]
        while open_nodes:
            node, length = open_nodes.pop()
            if length > best_length:
                best, best_length = node, length
            open_nodes += [(c, length + len(c.text)) for c in node.children if text.startswith(c.text, length)]
        return best

    def add_context(self, parent: Node, ids: Sequence[int], text: str) -> Node:
        """Context after ``parent``: an existing node with these ids, or a new one; ``parent`` itself for no ids."""
        added = list(ids)
        if not added:
            return parent
        for child in parent.children:
            if not child.is_sampled and child.ids == added:
                return child
        return self._add(parent, Node(added, text))

    def forks_at(self, parent: Node, ids: Sequence[int]) -> bool:
        """Whether ``ids`` after ``parent`` would be another continuation beside one that is there already."""
        if not ids or not parent.children:
            return False
        return not any(not child.is_sampled and child.ids == ids for child in parent.children)

    def add_sampled(self, parent: Node, sampled: SampledTokens, text: str) -> Node:
        """A completion after ``parent``, which must have passed ``check_sampled``; always a node of its own."""
        logprobs = [float(value) for value in sampled.logprobs if value is not None]
        node = Node(list(sampled.ids), text, logprobs=logprobs)
        node.finish_reason, node.policy_version = sampled.finish_reason, sampled.policy_version
        self.completions += 1
        return self._add(parent, node)

    def sampled_nodes(self) -> list[Node]:
        """Every completion, each one's continuations directly after it, in the order in which they were added."""
        return [node for node in self._walk() if node.is_sampled]

    def leaves(self) -> list[Node]:
        """The completions that nothing continues, one per sequence; a continuation takes the place of its parent."""
        return [node for node in self.sampled_nodes() if not any(n.is_sampled for n in _below(node))]

    def _walk(self) -> Iterator[Node]:
        return _below(self.root)

    def _add(self, parent: Node, node: Node) -> Node:
        node.parent, node.end = parent, parent.end + len(node.ids)
        parent.children.append(node)
        return node


def prompt_after(node: Node, added: list[int]) -> PromptIds:
    """The ids of the walk to ``node`` and those that are added, as a prompt."""
    return PromptIds([*node.path(), Node(added, "")], node.end + len(added))


def sequence_of(node: Node) -> TokenSequence:
    """The walk to ``node`` as the trainer gets it."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    walk = node.path()
    for step in walk:
        ids += step.ids
        mask += step.ids if step.is_sampled else [MASKED] * len(step.ids)
        logprobs += step.logprobs if step.logprobs is not None else [PROMPT_LOGPROB] * len(step.ids)
    return TokenSequence(ids, mask, logprobs, "".join(step.text for step in walk), tuple(walk))


def check_sampled(sampled: SampledTokens, vocabulary: int | None = None) -> None:
    """Refuse a completion that the engine broke off, or whose ids and logprobs do not line up.

    Raises:
        RolloutInvalid: with the reason ``engine_error``, ``logprobs_misaligned``, ``logprob_missing``,
            ``logprob_invalid`` or ``id_outside_vocabulary``.
    """
    if sampled.finish_reason in BROKEN_OFF:
        raise RolloutInvalid(
            "engine_error", f"the engine broke off its answer (finish_reason {sampled.finish_reason!r}); see its log"
        )
    if len(sampled.ids) != len(sampled.logprobs):
        raise RolloutInvalid(
            "logprobs_misaligned",
            f"the engine sampled {len(sampled.ids)} ids and gave {len(sampled.logprobs)} logprobs; {WANTED_ENGINE}",
        )
    if not _all_logprobs(sampled.logprobs):
        _refuse_logprob(sampled.logprobs)
    if not _all_ids(sampled.ids, vocabulary):
        odd = next(number for number in sampled.ids if not _all_ids([number], vocabulary))
        raise RolloutInvalid(
            "id_outside_vocabulary",
            f"sampled id {sampled.ids.index(odd)} is {odd!r}, but the tokenizer knows {vocabulary} ids: is "
            "--env.tokenizer_name the tokenizer of the engine's model?",
        )


def _all_logprobs(values: Sequence[object]) -> bool:
    numbers = [value for value in values if isinstance(value, (int, float))]
    return (
        len(numbers) == len(values) and all(map(math.isfinite, numbers)) and max(numbers, default=0) <= HIGHEST_LOGPROB
    )


def _refuse_logprob(values: Sequence[object]) -> NoReturn:
    position, odd = next((at, value) for at, value in enumerate(values) if not _all_logprobs([value]))
    if odd is None:
        raise RolloutInvalid(
            "logprob_missing", f"the engine gave no logprob for sampled id {position}; {WANTED_ENGINE}"
        )
    raise RolloutInvalid("logprob_invalid", f"the logprob of sampled id {position} is {odd!r}; {WANTED_ENGINE}")


def _all_ids(ids: Sequence[object], vocabulary: int | None) -> bool:
    numbers = [number for number in ids if type(number) is int]
    if len(numbers) < len(ids) or min(numbers, default=0) < 0:
        return False
    return vocabulary is None or max(numbers, default=0) < vocabulary


def _below(node: Node) -> Iterator[Node]:
    stack = node.children[::-1]
    while stack:
        current = stack.pop()
        yield current
        stack += current.children[::-1]
