"""The agent's loop, played against a scripted engine."""

import json

import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import EngineUnavailable
from environments.agent_loop import HermesAgentLoop, StopReason
from environments.agent_loop.result import AgentResult
from environments.tools import BudgetConfig, Tool, parameters
from environments.tools.registry import _tools
from environments.tools.todo import TODO
from sandboxes.errors import SandboxClosed


def call(name, arguments):
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def echo(_, arguments):
    return {"said": arguments.get("text", "nothing")}


async def fail(_, arguments):
    raise SandboxClosed("the box died") if arguments.get("box") else ZeroDivisionError("a bug")


ECHO = Tool(
    "echo",
    "Say it.",
    parameters(text={"type": "string"}, n={"type": "integer"}),
    echo,
    needs_box=False,
    text_field="said",
)
FAIL = Tool("fail", "Fail.", parameters(box={"type": "boolean"}), fail, needs_box=False)


@pytest.fixture(autouse=True)
def offered_tools(monkeypatch):
    for tool in (ECHO, FAIL):
        monkeypatch.setitem(_tools, tool.name, tool)


def loop(server, **settings):
    tools = [ECHO, FAIL, TODO]
    return HermesAgentLoop(server, [t.schema() for t in tools], {t.name for t in tools}, **settings)


async def run(*replies, token_exact=True, **settings) -> tuple[AgentResult, ScriptedServer]:
    server = ScriptedServer(replies, token_exact=token_exact)
    result = await loop(ServerManager([server]), **settings).run([{"role": "user", "content": "hello"}])
    return result, server


def answers(result):
    return [json.loads(m["content"]) for m in result.messages if m["role"] == "tool"]


async def test_an_answer_without_a_call_ends_the_conversation():
    result, server = await run("hi")
    assert [m["role"] for m in result.messages] == ["user", "assistant"]
    assert (result.final_response, result.turns_used, result.finished_naturally) == ("hi", 1, True)
    assert result.stop_reason is StopReason.FINISHED
    assert result.valid
    assert result.error is None
    assert result.usage.completion_tokens > 0
    assert len(server.requests[0].arguments["tools"]) == 3


async def test_tools_run_and_their_results_go_back():
    result, _ = await run(call("echo", {"text": "x"}), "done")
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    request = result.messages[1]["tool_calls"][0]
    assert result.messages[2] == {"role": "tool", "tool_call_id": request["id"], "content": '{"said": "x"}'}
    assert request["function"] == {"name": "echo", "arguments": '{"text": "x"}'}
    assert result.tools_used == ["echo"]
    assert result.turns_used == 2


async def test_the_list_of_messages_grows_in_place():
    messages = [{"role": "user", "content": "hello"}]
    result = await loop(ServerManager([ScriptedServer(["hi"])])).run(messages)
    assert result.messages is messages
    assert len(messages) == 2


async def test_several_calls_of_one_turn_run_in_order():
    calls = {"tool_calls": [{"name": "echo", "arguments": {"text": t}} for t in "abc"]}
    result, _ = await run(calls, "done")
    assert answers(result) == [{"said": "a"}, {"said": "b"}, {"said": "c"}]


async def test_the_last_turn_leaves_the_tools_unanswered():
    result, _ = await run(call("echo", {}), call("echo", {}), max_turns=2)
    assert result.stop_reason is StopReason.MAX_TURNS
    assert not result.finished_naturally
    assert result.valid
    assert result.turns_used == 2


@pytest.mark.parametrize("nothing", ["", "null", "{}", "  "])
async def test_no_arguments_may_be_written_in_several_ways(nothing):
    result, _ = await run(call("echo", nothing), "done")
    assert answers(result) == [{"said": "nothing"}]
    assert result.tool_errors == []


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ('{"text": ', "Invalid JSON"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ('{"n": "soon"}', "must be of type integer"),
        ('{"other": 1}', "Unknown parameter"),
    ],
)
async def test_malformed_arguments_go_back_to_the_model(written, word):
    result, _ = await run(call("echo", {"text": "first"}), call("echo", written), "done")
    assert answers(result)[0] == {"said": "first"}
    assert word in answers(result)[1]["error"]
    (error,) = result.tool_errors
    assert (error.turn, error.tool_name) == (2, "echo")
    assert result.finished_naturally


async def test_history_with_a_malformed_call_is_fit_for_an_engine_that_renders_it():
    result, server = await run(call("echo", "{broken"), "done", token_exact=False)
    sent = server.requests[1].messages[1]["tool_calls"][0]["function"]
    assert sent == {"name": "echo", "arguments": "{}"}
    assert result.messages[1]["tool_calls"][0]["function"]["arguments"] == "{broken"


async def test_an_unknown_tool_is_answered_with_the_list():
    result, _ = await run(call("sudo", {}), "done")
    assert answers(result)[0]["error"] == "Unknown tool 'sudo'. Available tools: ['echo', 'fail', 'todo']"


async def test_a_registered_tool_that_was_not_offered_is_unknown():
    result, _ = await run(call("terminal", {"command": "ls"}), "done")
    assert answers(result)[0]["error"].startswith("Unknown tool 'terminal'")


async def test_a_bug_in_a_tool_is_a_failed_call():
    result, _ = await run(call("fail", {}), "done")
    assert answers(result)[0]["error"] == "Tool execution failed: ZeroDivisionError: a bug"
    assert len(result.tool_errors) == 1
    assert result.finished_naturally


async def test_a_box_that_broke_ends_the_rollout_as_invalid():
    result, _ = await run(call("fail", {"box": True}), "never asked")
    assert result.stop_reason is StopReason.SANDBOX_ERROR
    assert result.error == "SandboxClosed: the box died"
    assert not result.valid


async def test_an_engine_that_fails_is_kept_in_the_result():
    result, _ = await run(call("echo", {}), EngineUnavailable("gone"))
    assert result.stop_reason is StopReason.ENGINE_ERROR
    assert "gone" in (result.error or "")
    assert not result.valid
    assert not result.finished_naturally
    assert result.turns_used == 1


async def test_an_answer_without_a_choice_is_invalid():
    class Empty:
        async def chat_completion(self, **_):
            return {"choices": []}

    result = await loop(Empty()).run([{"role": "user", "content": "x"}])
    assert result.stop_reason is StopReason.EMPTY_REPLY
    assert not result.valid


async def test_a_reply_that_was_cut_is_no_final_answer_and_its_calls_do_not_run():
    result, _ = await run(call("echo", {"text": "x"}) | {"finish_reason": "length"})
    assert result.stop_reason is StopReason.LENGTH
    assert not result.finished_naturally
    assert answers(result) == []
    assert result.valid


async def test_calls_that_the_engine_left_in_the_text_are_read():
    written = 'I look.\n<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'
    result, _ = await run(written, "done")
    assert answers(result) == [{"said": "x"}]
    assert result.messages[1]["content"] == "I look."


async def test_a_broken_call_in_the_text_goes_back_to_the_model_too():
    result, _ = await run('<tool_call>\n{"name": "echo", "arguments": {"text": \n</tool_call>', "done")
    assert "could not be read" in answers(result)[0]["error"]
    assert result.final_response == "done"


async def test_without_tools_nothing_is_read_as_a_call():
    text = '<tool_call>{"name": "echo", "arguments": {}}</tool_call>'
    agent = HermesAgentLoop(ServerManager([ScriptedServer([text])]), [], set())
    result = await agent.run([{"role": "user", "content": "x"}])
    assert result.final_response == text
    assert result.finished_naturally


async def test_reasoning_is_kept_per_turn_whatever_it_is_called():
    replies = [
        {"content": "", "reasoning_content": "one", "tool_calls": [{"id": "1", "function": {"name": "echo"}}]},
        {"content": "", "reasoning": "two", "tool_calls": [{"name": "echo", "arguments": {"text": "y"}}]},
        {"content": "", "reasoning_details": [{"text": "three"}], "tool_calls": [{"name": "todo"}]},
        {"content": "<think>four</think>done"},
    ]

    class Engine:
        async def chat_completion(self, **_):
            return {"choices": [{"message": replies.pop(0)}]}

    result = await loop(Engine()).run([{"role": "user", "content": "x"}])
    assert result.reasoning_per_turn == ["one", "two", "three", "four"]
    assert result.messages[1]["reasoning_content"] == "one"
    assert "reasoning_content" not in result.messages[-1]
    assert answers(result)[:2] == [{"said": "nothing"}, {"said": "y"}]


async def test_settings_reach_the_engine():
    _, server = await run("hi", temperature=0.3, max_tokens=77, extra_body={"a": 1}, split="eval")
    sent = server.requests[0].arguments
    assert (sent["temperature"], sent["max_tokens"], sent["extra_body"], sent["n"]) == (0.3, 77, {"a": 1}, 1)


async def test_the_limit_of_the_last_reply_shrinks_to_what_the_rollout_may_still_use():
    result, server = await run(
        call("echo", {"text": "x" * 300}),
        call("echo", {"text": "x" * 3000}),
        "never",
        max_tokens=5000,
        max_rollout_tokens=2000,
    )
    limits = [request.arguments["max_tokens"] for request in server.requests]
    assert limits[0] < 2000
    assert limits[1] < limits[0] - 100
    assert result.stop_reason is StopReason.CONTEXT_FULL
    assert result.valid
    assert result.turns_used == len(limits)


async def test_a_prompt_that_fills_the_context_alone_is_no_rollout():
    result, server = await run("never", max_rollout_tokens=4)
    assert result.stop_reason is StopReason.ENGINE_ERROR
    assert not result.valid
    assert server.requests == []


async def test_the_todo_list_lasts_for_the_rollout_and_no_longer():
    entry = {"id": "1", "content": "look", "status": "pending"}
    result, _ = await run(call("todo", {"todos": [entry]}), call("todo", {}), "done")
    assert answers(result)[1]["todos"] == [entry]
    again, _ = await run(call("todo", {}), "done")
    assert answers(again)[0]["todos"] == []


async def test_a_long_result_is_cut_to_a_preview():
    budget = BudgetConfig(default_result_size=1000, preview_size=50)
    result, _ = await run(call("echo", {"text": "word " * 1000}), "done", budget_config=budget)
    (answer,) = answers(result)
    assert answer["said"].startswith("word word")
    assert "5000 chars in all" in answer["said"]
    assert len(answer["said"]) < 200


async def test_the_longest_results_of_a_turn_are_cut_first():
    budget = BudgetConfig(turn_budget=3000, preview_size=50)
    calls = {
        "tool_calls": [{"name": "echo", "arguments": {"text": t * n}} for t, n in (("a", 900), ("b", 2500), ("c", 900))]
    }
    result, _ = await run(calls, "done", budget_config=budget)
    assert [len(answer["said"]) > 200 for answer in answers(result)] == [True, False, True]


async def test_a_managed_server_gives_the_state_of_every_sequence():
    manager = ServerManager([server := ScriptedServer([call("echo", {"text": "x"}), "done"])])
    async with manager.managed_server(tokenizer=server.tokenizer, tool_call_parser="hermes") as managed:
        result = await loop(managed).run([{"role": "user", "content": "hello"}])
    assert result.finished_naturally
    (node,) = result.managed_state["nodes"]
    assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
    assert answers(result) == [{"said": "x"}]


async def test_a_malformed_call_on_a_managed_server_keeps_one_sequence():
    broken = '<tool_call>\n{"name": "echo", "arguments": {"text": }}\n</tool_call>'
    manager = ServerManager([server := ScriptedServer([broken, call("echo", {"text": "x"}), "done"])])
    async with manager.managed_server(tokenizer=server.tokenizer, tool_call_parser="hermes") as managed:
        result = await loop(managed).run([{"role": "user", "content": "hello"}])
    assert "error" in answers(result)[0]
    assert answers(result)[1] == {"said": "x"}
    assert len(result.managed_state["nodes"]) == 1
