"""One rollout against a token-exact engine, recorded as the very ids and logprobs that the engine consumed and sampled.

A ``ManagedServer`` is used like an engine. The first prompt is rendered and encoded; after that only new messages are,
and their ids are appended (``chat_template``, ``token_graph``). What was sampled is never decoded and encoded again.
Where a conversation does not continue an earlier turn, it forks into a sequence of its own.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from atroposlib.envs.server_handling.certificate import Certificate, digest
from atroposlib.envs.server_handling.chat_request import ChatRequest, message_of
from atroposlib.envs.server_handling.chat_template import ChatTemplate
from atroposlib.envs.server_handling.completions import chat_logprobs, read_chat_completion, read_completion
from atroposlib.envs.server_handling.conversation import ChatPrompt, Conversation, HistoryPolicy, opened_thought
from atroposlib.envs.server_handling.generation import EngineFacts, Generation, PromptIds, SampledTokens
from atroposlib.envs.server_handling.managed_server_adapter import ManagedServerAdapter
from atroposlib.envs.server_handling.off_loop import CHARS_PER_ID, off_loop
from atroposlib.envs.server_handling.placeholder_server import DummyManagedServer
from atroposlib.envs.server_handling.sequence_node import SequenceNode
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.token_graph import Node, TokenGraph, check_sampled, prompt_after, sequence_of
from atroposlib.errors import ConfigError, ContextFull, NotTokenExact
from atroposlib.tool_call_parsers import ParsedMessage, ToolCallParser, get_parser
from atroposlib.tool_call_parsers.base import fresh_id

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

__all__ = ["DummyManagedServer", "ManagedServer", "ManagedServerAdapter", "SequenceNode", "open_managed_server"]


class ManagedServer:
    """Records every completion; use ``ServerManager.managed_server`` to open one per rollout.

    Args:
        server: a token-exact engine.
        tokenizer: of the engine's model; its chat template renders the messages.
        track_tree: report every completion rather than only those that nothing continues.
        tool_parser: name or object of the parser that reads tool calls; without one they stay text.
        preserve_think_blocks: keep earlier thoughts in the context even where the template would drop them. Without
            it a template that drops them makes the rollout fork there; ``forks`` counts why.
        max_rollout_tokens: longest sequence in ids; the last turn's limit shrinks to fit.
    """

    def __init__(
        self,
        server: APIServer,
        tokenizer: Any = None,
        track_tree: bool = False,
        tool_parser: str | ToolCallParser | None = None,
        preserve_think_blocks: bool = False,
        *,
        facts: EngineFacts | None = None,
        template: ChatTemplate | None = None,
        max_rollout_tokens: int | None = None,
    ) -> None:
        tokenizer = tokenizer if tokenizer is not None else getattr(server, "tokenizer", None)
        if tokenizer is None:
            raise ConfigError("a rollout in tokens needs the tokenizer of the model: managed_server(tokenizer=...)")
        self.server = server
        self.tokenizer = tokenizer
        self.track_tree = track_tree
        self.tool_parser = get_parser(tool_parser) if isinstance(tool_parser, str) else tool_parser
        self._policy: HistoryPolicy = "keep" if preserve_think_blocks else "template"
        self.max_rollout_tokens = max_rollout_tokens
        self._facts = facts
        self._template = template or ChatTemplate(tokenizer)
        self._tokens = self._template.tokens
        self.reset()

    def reset(self) -> None:
        """Forget everything and begin a new rollout."""
        self.rollout_id = uuid.uuid4().hex
        self.forks: Counter[str] = Counter()
        """How often, and why, a turn did not continue an earlier one."""
        self.kept: Counter[str] = Counter()
        """How often, and why, what came before was kept though the template would now write it another way."""
        self._graph = TokenGraph()
        self._conversation = Conversation(self._template, self._graph, self._policy)
        self._call_ids: set[str] = set()

    # asking the engine

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Complete a chat; arguments as in OpenAI's API. Tool calls are read by ``tool_parser`` where tools are given.

        A call that cannot be read is a tool call, too: its ``function.arguments`` is what the model wrote (no JSON
        object) and its ``error`` says why.

        Raises:
            ContextFull: the conversation leaves no room for an answer.
            RolloutInvalid: the template refuses the messages, or the engine's ids and logprobs do not line up.
            EngineUnavailable, EngineRefused: see ``APIServer``.
        """
        request, graph, conversation = ChatRequest.take(kwargs), self._graph, self._conversation
        prompt = await conversation.prompt(request)
        consumed = prompt.whole
        answer = await self._generate(consumed, kwargs)
        texts = [await self._text_of(sampled) for sampled in answer.completions]
        both = list(zip(answer.completions, texts, strict=True))
        messages = [await self._read(sampled, text, prompt, request) for sampled, text in both]
        self._count(graph, prompt)
        context = graph.add_context(prompt.parent, prompt.ids, prompt.text)
        choices = []
        for index, ((sampled, text), message) in enumerate(zip(both, messages, strict=True)):
            conversation.remember(prompt, request, graph.add_sampled(context, sampled, text), message)
            called = bool(message.get("tool_calls")) and sampled.finish_reason == "stop"
            reason = "tool_calls" if called else sampled.finish_reason
            told = chat_logprobs(self._tokens, sampled) if request.logprobs else None
            choices.append({"index": index, "message": message, "finish_reason": reason, "logprobs": told})
        return read_chat_completion(self._answer("chat.completion", choices, len(consumed), answer))

    async def render(self, **kwargs: Any) -> tuple[str, list[int]]:
        """The prompt that ``chat_completion`` would send now, as text and as ids; nothing is recorded.

        Raises: RolloutInvalid where the template refuses the messages.
        """
        prompt = await self._conversation.prompt(ChatRequest.take(kwargs))
        return prompt.whole_text, prompt.whole.tolist()

    async def completion(self, **kwargs: Any) -> Completion:
        """Complete a text (``prompt``) or ids (``input_ids``, or ``prompt`` as a list of ids).

        A prompt that begins with all that an earlier completion consumed and sampled (as text, special tokens
        included) continues it.

        Raises: as ``chat_completion``.
        """
        given = kwargs.pop("input_ids", None)
        prompt = kwargs.pop("prompt", None) if given is None else given
        graph = self._graph
        if isinstance(prompt, str):
            parent = graph.longest_text_match(prompt)
            text = prompt[sum(len(node.text) for node in parent.path()) :]
            encode = self._tokens.encode if parent is not graph.root else self._tokens.encode_prompt
            ids = await off_loop(len(text), encode, text)
        else:
            whole = _as_ids(prompt)
            parent = graph.longest_match(whole)
            ids = whole[parent.end :]
            text = await off_loop(CHARS_PER_ID * len(ids), self._tokens.decode, ids)
        prompt_ids = prompt_after(parent, ids)
        answer = await self._generate(prompt_ids, kwargs)
        texts = [await self._text_of(sampled) for sampled in answer.completions]
        said = [await self._text_of(sampled, bare=True) for sampled in answer.completions]
        if graph.forks_at(parent, ids):
            self.forks["history_changed"] += 1
        context = graph.add_context(parent, ids, text)
        choices = []
        for index, sampled in enumerate(answer.completions):
            graph.add_sampled(context, sampled, texts[index])
            reason = sampled.finish_reason
            choices.append({"index": index, "text": said[index], "finish_reason": reason, "logprobs": None})
        return read_completion(self._answer("text_completion", choices, len(prompt_ids), answer))

    # what was recorded

    def get_state(self) -> dict[str, Any]:
        """The recorded sequences: ``{"nodes": [SequenceNode, …]}``, a continuation in the place of what it continues.

        With ``track_tree``: ``{"sequences": {text: SequenceNode}, "tree": the same}`` with every completion.
        """
        if self.track_tree:
            sequences = self.sequences
            return {"sequences": sequences, "tree": sequences}
        return {"nodes": self.current_nodes}

    @property
    def current_nodes(self) -> list[SequenceNode]:
        """One sequence per completion that nothing continues."""
        return [self._sequence_node(leaf) for leaf in self._graph.leaves()]

    @property
    def sequences(self) -> dict[str, SequenceNode]:
        """Every completion's sequence by its text."""
        nodes = [self._sequence_node(node) for node in self._graph.sampled_nodes()]
        return {node.full_text: node for node in nodes}

    def certificate(self, node: SequenceNode) -> Certificate:
        """What a sample made of ``node`` says about itself; see ``Certificate``."""
        metadata = node.metadata or {}
        return Certificate(
            rollout_id=self.rollout_id,
            engine=self._facts.engine if self._facts else "",
            model=self._model_name,
            policy_versions=metadata.get("policy_versions", []),
            template=self._template.digest,
            turns=metadata.get("turns", 0),
            sampled_tokens=metadata.get("sampled_tokens", 0),
            forks=self.forks.total(),
            digest=digest(node.tokens, node.masked_tokens, node.logprobs),
        )

    @property
    def _model_name(self) -> str:
        return self._facts.model_name if self._facts else self.server.config.model_name

    def _sequence_node(self, node: Node) -> SequenceNode:
        sequence = sequence_of(node)
        sampled = [step for step in sequence.nodes if step.is_sampled]
        versions = [step.policy_version for step in sampled if step.policy_version is not None]
        return SequenceNode.model_construct(
            full_text=sequence.text,
            tokens=sequence.ids,
            masked_tokens=sequence.mask,
            logprobs=sequence.logprobs,
            metadata={
                "finish_reason": node.finish_reason,
                "turns": len(sampled),
                "sampled_tokens": sum(len(step.ids) for step in sampled),
                "policy_versions": list(dict.fromkeys(versions)),
                "trainable": True,
            },
        )

    # from ids to an answer

    async def _generate(self, prompt_ids: PromptIds, kwargs: dict[str, Any]) -> Generation:
        facts = await self._known_facts()
        wanted = kwargs.pop("max_completion_tokens", None) or kwargs.get("max_tokens")
        settings = {**kwargs, "max_tokens": self._room(facts, len(prompt_ids), wanted)}
        answer = await self.server.generate(input_ids=prompt_ids, **settings)
        answer = answer.first(kwargs.get("n") or 1)
        answer.check_consumed(prompt_ids)
        for sampled in answer.completions:
            check_sampled(sampled, self._tokens.vocabulary)
        return answer

    async def _known_facts(self) -> EngineFacts:
        if self._facts is None:
            self._facts = await self.server.probe()
        if not self._facts.token_exact:
            raise not_token_exact(self.server, self._facts)
        return self._facts

    def _room(self, facts: EngineFacts, used: int, wanted: int | None) -> int | None:
        """The most ids an answer may have; without a limit of its own, what the rollout and the engine leave."""
        limits = [limit for limit in (self.max_rollout_tokens, facts.max_model_len) if limit]
        if not limits:
            return wanted
        room = min(limits) - used
        if room <= 0:
            raise ContextFull(f"the conversation is {used} ids long and the limit is {min(limits)}", status=400)
        return room if wanted is None or wanted <= 0 else min(wanted, room)

    async def _text_of(self, sampled: SampledTokens, bare: bool = False) -> str:
        """What was sampled as text, or ``bare``: without special tokens."""
        ids = self._tokens.without_end_token(sampled.ids) if bare else sampled.ids
        return await off_loop(CHARS_PER_ID * len(ids), self._tokens.decode, ids, bare)

    async def _read(
        self, sampled: SampledTokens, text: str, prompt: ChatPrompt, request: ChatRequest
    ) -> dict[str, Any]:
        """The message that a completion is, its calls read where tools are offered and there is a parser.

        A thought that the template opened is shown whole, so that whoever reads the message sees where it begins; one
        that the client's own prefill opened is shown from where the client left off.
        """
        parser, thought = self.tool_parser, opened_thought(prompt.text)
        opened = "" if request.begins_answer else thought
        if parser is None or (request.tools is None and not parser.marks_text):
            return message_of(ParsedMessage(opened + await self._text_of(sampled, bare=True)))
        end = self._template.end_of(sampled.ids, sampled.finish_reason) or ""
        said = opened + text.removesuffix(end)
        return message_of(await self._parse(parser, said, request.tools or [], thinking=bool(thought)))

    async def _parse(self, parser: ToolCallParser, said: str, tools: Any, thinking: bool) -> ParsedMessage:
        """Read the calls of an answer, no two of a rollout with one id."""
        taken = self._call_ids
        parse = partial(parser.parse, said, tools, call_number=len(taken), thinking=thinking)
        parsed = await off_loop(len(said), parse)
        calls = []
        for call in parsed.tool_calls:
            calls.append(replace(call, id=fresh_id(call.id, taken)))
            taken.add(calls[-1].id)
        return replace(parsed, tool_calls=tuple(calls))

    def _count(self, graph: TokenGraph, prompt: ChatPrompt) -> None:
        if graph.forks_at(prompt.parent, prompt.ids):
            self.forks[prompt.why] += 1
        elif prompt.kept is not None:
            self.kept[prompt.kept] += 1

    def _answer(self, kind: str, choices: list[Any], consumed: int, answer: Generation) -> dict[str, Any]:
        sampled = sum(len(completion.ids) for completion in answer.completions)
        return {
            "id": f"{self.rollout_id[:8]}-{self._graph.completions}",
            "object": kind,
            "created": 0,
            "model": self._model_name,
            "choices": choices,
            "usage": {
                "prompt_tokens": consumed,
                "completion_tokens": sampled,
                "total_tokens": consumed + sampled,
            },
        }


async def open_managed_server(
    server: APIServer,
    *,
    tokenizer: Any = None,
    template: ChatTemplate | None = None,
    preserve_think_blocks: bool = False,
    tool_call_parser: str | ToolCallParser | None = None,
    allow_placeholders: bool = False,
    max_rollout_tokens: int | None = None,
) -> Any:
    """A ``ManagedServer`` over an engine that was found to be token-exact.

    Raises:
        NotTokenExact: the engine is not, and placeholders are not allowed.
    """
    facts = await server.probe()
    if not facts.token_exact:
        if allow_placeholders:
            return DummyManagedServer(server, tokenizer, allow_placeholders=True)
        raise not_token_exact(server, facts)
    return ManagedServer(
        server,
        tokenizer,
        tool_parser=tool_call_parser,
        preserve_think_blocks=preserve_think_blocks,
        facts=facts,
        template=template,
        max_rollout_tokens=max_rollout_tokens,
    )


def not_token_exact(server: APIServer, facts: EngineFacts) -> NotTokenExact:
    """The error that says why an engine cannot be recorded, and what to use."""
    return NotTokenExact(
        f"{server.config.base_url or 'the engine'} does not tell the token ids it samples ({facts.reason}); "
        f"{server.token_exact_hint}"
    )


def _as_ids(prompt: Any) -> list[int]:
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(number, int) for number in prompt):
        raise ConfigError("completion() needs one prompt: a text, or a list of ids")
    return list(prompt)
