"""Whatever model and whatever it says: what the engine was fed and what it sampled is what is recorded.

Every chat template that ``trl`` ships, every tool format, up to thirty turns, content made to be difficult.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atroposlib.envs.server_handling.managed_server import ManagedServer
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.errors import RolloutInvalid
from atroposlib.tool_call_parsers import list_parsers
from tests.atroposlib.envs.server_handling.real_tokenizers import WITHOUT_TOOLS, template_files, tokenizer_with
from tests.atroposlib.envs.server_handling.tools import TOOLS

CALLS = [
    '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>',
    "<tool_call>\n<function=terminal>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
    '[TOOL_CALLS][{"name": "terminal", "arguments": {"command": "ls"}}]',
    '[TOOL_CALLS]terminal[ARGS]{"command": "ls"}',
    '{"name": "terminal", "parameters": {"command": "ls"}}',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>terminal<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.terminal:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "<tool_call>terminal\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    ' to=functions.terminal<|channel|>commentary json<|message|>{"command": "ls"}<|call|>',
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>done",
    "<|tool_call>call:terminal{command:ls}<tool_call|>",
]
PIECES = [
    *CALLS,
    "",
    "\n",
    "\n\n leading",
    "trailing \n",
    "<think>\nhm\n</think>\n\n",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<|im_start|>user\n",
    "<|eot_id|>",
    "<eos>",
    "zqAnswerqz",
    "zqNewsqz",
    "{{ messages }}{% raw %}",
    '{"a": "\\"</tool_call>\\""}',
    "üßé🙂漢\u200b",
    "\x00\x07",
    "x" * 300,
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
ENDS = ["<|im_end|>", "<|eot_id|>", "<eos>", "<turn|>", "<|call|>", ""]
TURNS = st.lists(
    st.tuples(TEXTS, st.sampled_from(ENDS), st.sampled_from(["stop", "stop", "stop", "length"]), TEXTS),
    min_size=1,
    max_size=30,
)


class Played:
    """The requests of one rollout and their answers, and the rollout as it was recorded."""

    def __init__(self, tokenizer: Any, parser: str, keep: bool, tools: bool) -> None:
        self.tokenizer, self.tools = tokenizer, TOOLS if tools else None
        self.engine = ScriptedServer(self._answer, tokenizer=tokenizer)
        self.server = ManagedServer(self.engine, tokenizer, tool_parser=parser, preserve_think_blocks=keep)
        self.turns: list[tuple[list[int], list[int], list[float]]] = []
        self.next: tuple[str, str, str] = ("", "", "stop")
        self.refused: str | None = None

    def _answer(self, request: Any) -> dict[str, Any]:
        text, end, reason = self.next
        ids = self.tokenizer.encode(text + end, add_special_tokens=False)
        logprobs = [-0.01 * (1 + position % 7) for position in range(len(ids))]
        self.turns.append((request.input_ids, ids, logprobs))
        return {"token_ids": ids, "logprobs": logprobs, "finish_reason": reason}

    async def play(self, turns: list[tuple[str, str, str, str]]) -> None:
        """Ends early where the template refuses what was said."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What is here?"}]
        for text, end, reason, more in turns:
            self.next = (text, end, reason)
            try:
                answer = await self.server.chat_completion(messages=messages, tools=self.tools)
            except RolloutInvalid as refused:
                self.refused = refused.reason
                return
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            results = [{"role": "tool", "tool_call_id": call.id, "content": more} for call in message.tool_calls or []]
            messages += results or [{"role": "user", "content": more}]


def check(played: Played) -> None:
    assert played.refused in (None, "chat_template")
    nodes = played.server.get_state()["nodes"]
    covered: list[set[int]] = [set() for _ in nodes]
    for prompt, sampled, logprobs in played.turns:
        start, end = len(prompt), len(prompt) + len(sampled)
        holders = [index for index, node in enumerate(nodes) if node.tokens[:end] == prompt + sampled]
        exact = [i for i in holders if nodes[i].masked_tokens[start:end] == sampled]
        assert exact, "a turn is in no sequence as it was sampled"
        assert all(nodes[i].logprobs[start:end] == logprobs for i in exact)
        for index in exact:
            covered[index] |= set(range(start, end))
    for index, node in enumerate(nodes):
        assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
        trained = {position for position, mask in enumerate(node.masked_tokens) if mask != -100}
        assert trained <= covered[index], "ids are trained on that were not sampled there"
        assert all(node.logprobs[p] == 1.0 for p in range(len(node.tokens)) if p not in trained)
    assert len(nodes) == 1 + played.server.forks.total()


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in template_files()])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, parser=st.sampled_from(list_parsers()), keep=st.booleans())
def test_what_is_fed_and_sampled_is_what_is_recorded(file, turns, parser, keep):
    played = Played(tokenizer_with(file.read_text()), parser, keep, tools=file.stem not in WITHOUT_TOOLS)
    asyncio.run(played.play(turns))
    check(played)
