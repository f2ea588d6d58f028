"""A rollout recorded token by token: what is fed is what is stored, and what was sampled stays as it was."""

import asyncio

import pytest

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from atroposlib.envs.server_handling.certificate import digest
from atroposlib.envs.server_handling.generation import Generation
from atroposlib.envs.server_handling.managed_server import (
    DummyManagedServer,
    ManagedServer,
    ManagedServerAdapter,
    SequenceNode,
)
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError, ContextFull, NotTokenExact, RolloutInvalid
from tests.atroposlib.envs.server_handling.real_tokenizers import WITHOUT_TOOLS, template_files, tokenizer_with
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving
from tests.atroposlib.envs.server_handling.tools import TOOLS

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_token_id
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is here?"}
LS = {"content": "", "tool_calls": [{"name": "terminal", "arguments": {"command": "ls"}}]}
# a template that drops the thoughts of all answers but the last, and only when a new question follows
FORGETFUL = CHATML_TEMPLATE.replace(
    "(message.content or '')",
    "((message.content or '').split('</think>')[-1].lstrip()"
    " if messages[loop.index0:] | selectattr('role', 'equalto', 'user') | list else (message.content or ''))",
)


def managed(*replies, tokenizer=TOKENIZER, **options):
    return ManagedServer(ScriptedServer(list(replies), tokenizer=tokenizer), tokenizer, tool_parser="hermes", **options)


def result(call, content="file.py"):
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def reply(answer, index=0):
    return answer.choices[index].message.model_dump(exclude_none=True)


def trained(node):
    return [token for token in node.masked_tokens if token != -100]


def nodes(server):
    return server.get_state()["nodes"]


def check_shape(node):
    assert isinstance(node, SequenceNode)
    assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
    for token, mask, logprob in zip(node.tokens, node.masked_tokens, node.logprobs, strict=True):
        assert (mask, logprob) == (-100, 1.0) or (mask == token and logprob <= 0)


async def play(server, messages, *turns, **options):
    """Play a conversation; each turn is the messages that follow the answer, or a function of the answer's calls."""
    answers = []
    for turn in turns:
        answer = await server.chat_completion(messages=messages, tools=TOOLS, **options)
        answers.append(answer)
        messages = [*messages, reply(answer)]
        calls = answer.choices[0].message.tool_calls or []
        messages += [turn(call) for call in calls] if callable(turn) else turn
    return answers, messages


async def test_a_tool_episode_is_one_sequence_that_reads_as_the_template_writes_it():
    server = managed(LS, "There is file.py.")
    _, messages = await play(server, [SYSTEM, QUESTION], result, [])
    (node,) = nodes(server)
    check_shape(node)
    expected = TOKENIZER.apply_chat_template(messages, tools=TOOLS, tokenize=False).removesuffix("\n")
    assert node.full_text == TOKENIZER.decode(node.tokens) == expected
    sampled = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
    assert TOKENIZER.decode(trained(node)) == sampled + "There is file.py.<|im_end|>"
    assert node.metadata["turns"] == 2
    assert not server.forks


async def test_what_the_engine_is_fed_is_what_is_stored():
    server = managed(LS, LS, "Done.")
    await play(server, [QUESTION], result, result, [])
    (node,) = nodes(server)
    for request in server.server.requests:
        prompt = request.input_ids
        assert node.tokens[: len(prompt)] == prompt


async def test_parallel_calls_get_ids_of_their_own_through_the_rollout():
    twice = {"content": "", "tool_calls": LS["tool_calls"] * 2}
    server = managed(twice, twice, "Done.")
    answers, _ = await play(server, [QUESTION], result, result, [])
    ids = [call.id for answer in answers[:2] for call in answer.choices[0].message.tool_calls]
    assert len(set(ids)) == 4
    assert answers[0].choices[0].finish_reason == "tool_calls"
    assert len(nodes(server)) == 1


async def test_a_broken_call_is_a_call_whose_arguments_are_what_the_model_wrote():
    server = managed('<tool_call>{"name": "terminal", "arguments": {"command": ls}}</tool_call>', "Sorry.")
    answers, _ = await play(server, [QUESTION], result, [])
    (call,) = answers[0].choices[0].message.tool_calls
    assert call.function.name == "terminal"
    assert call.function.arguments == '{"name": "terminal", "arguments": {"command": ls}}'
    assert "not valid JSON" in call.error
    assert len(nodes(server)) == 1


async def test_calls_stay_text_where_no_tools_are_offered():
    server = managed(LS)
    answer = await server.chat_completion(messages=[QUESTION])
    assert answer.choices[0].message.tool_calls is None
    assert "<tool_call>" in answer.choices[0].message.content


async def test_an_answer_cut_at_the_limit_is_closed_by_context_that_is_not_trained():
    server = managed("abcdefghij", "Go on.")
    answers, _ = await play(server, [QUESTION], [{"role": "user", "content": "And?"}], max_tokens=4)
    await server.chat_completion(
        messages=[QUESTION, reply(answers[0]), {"role": "user", "content": "And?"}], tools=TOOLS, max_tokens=100
    )
    (node,) = nodes(server)
    assert answers[0].choices[0].finish_reason == "length"
    assert TOKENIZER.decode(trained(node)) == "abcdGo on.<|im_end|>"
    assert "abcd<|im_end|>\n<|im_start|>user\nAnd?" in node.full_text


@pytest.mark.parametrize(
    "said",
    ["", "\nbegins with a newline", "says <|endoftext|> in the middle", "</think>", "a" * 20_000, "h\u00e9 \U0001f642"],
)
async def test_odd_answers_are_continued_like_any_other(said):
    server = managed(said, "Next.")
    await play(server, [QUESTION], [{"role": "user", "content": "More"}], [])
    (node,) = nodes(server)
    check_shape(node)
    assert trained(node) == [*TOKENIZER.encode(said), EOS, *TOKENIZER.encode("Next."), EOS]
    assert node.full_text == TOKENIZER.decode(node.tokens)


async def test_an_answer_without_a_single_id_is_continued_too():
    server = managed({"token_ids": [], "finish_reason": "stop"}, "Next.")
    await play(server, [QUESTION], [{"role": "user", "content": "More"}], [])
    (node,) = nodes(server)
    assert trained(node) == [*TOKENIZER.encode("Next."), EOS]


async def test_several_choices_are_several_sequences_in_their_order():
    server = managed("a", "b", "c", "after b")
    answer = await server.chat_completion(messages=[QUESTION], tools=TOOLS, n=3)
    assert [TOKENIZER.decode(trained(node)) for node in nodes(server)] == ["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]
    more = [QUESTION, reply(answer, 1), {"role": "user", "content": "More"}]
    await server.chat_completion(messages=more, tools=TOOLS)
    texts = [TOKENIZER.decode(trained(node)) for node in nodes(server)]
    assert texts == ["a<|im_end|>", "b<|im_end|>after b<|im_end|>", "c<|im_end|>"]


async def test_the_same_prompt_asked_at_once_gives_one_sequence_each():
    server = managed("a", "b", "c")
    await asyncio.gather(*(server.chat_completion(messages=[QUESTION]) for _ in range(3)))
    assert len(nodes(server)) == 3


async def test_the_same_prompt_asked_again_is_no_fork():
    server = managed("a", "b")
    await server.chat_completion(messages=[QUESTION])
    await server.chat_completion(messages=[QUESTION])
    assert len(nodes(server)) == 2
    assert not server.forks


async def test_an_answer_without_a_limit_gets_the_room_that_the_engine_has():
    server = ManagedServer(ScriptedServer(["a"], max_model_len=100), TOKENIZER)
    answer = await server.chat_completion(messages=[QUESTION])
    assert server.server.requests[0].arguments["max_tokens"] == 100 - answer.usage.prompt_tokens


async def test_an_inexact_engine_is_found_out_without_a_manager_too():
    with pytest.raises(NotTokenExact, match="the script says so"):
        await ManagedServer(ScriptedServer(["a"], token_exact=False), TOKENIZER).chat_completion(messages=[QUESTION])


async def test_an_answer_that_begins_like_another_is_told_apart():
    server = managed("a", "ab", "after ab")
    answer = await server.chat_completion(messages=[QUESTION], n=2)
    more = [QUESTION, reply(answer, 1), {"role": "user", "content": "More"}]
    await server.chat_completion(messages=more)
    assert [TOKENIZER.decode(trained(node)) for node in nodes(server)] == [
        "a<|im_end|>",
        "ab<|im_end|>after ab<|im_end|>",
    ]


async def test_a_changed_history_forks_and_is_counted():
    server = managed("one", "two")
    answers, _ = await play(server, [QUESTION], [])
    changed = [QUESTION, {"role": "assistant", "content": "ONE"}, {"role": "user", "content": "More"}]
    await server.chat_completion(messages=changed, tools=TOOLS)
    first, second = nodes(server)
    assert answers[0].choices[0].message.content == "one"
    assert TOKENIZER.decode(trained(first)) == "one<|im_end|>"
    assert TOKENIZER.decode(trained(second)) == "two<|im_end|>"
    assert server.forks == {"history_changed": 1}


async def test_another_question_after_the_same_answer_is_a_fork():
    server = managed("one", "two", "three")
    answer = await server.chat_completion(messages=[QUESTION])
    for more in ("More", "Less"):
        await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": more}])
    assert len(nodes(server)) == 2
    assert server.forks == {"answered_again": 1}


async def test_another_text_after_the_same_completion_is_a_fork():
    server = managed("one", "two", "three")
    answer = await server.completion(prompt="Q:")
    assert not server.forks
    await server.completion(prompt="Q:" + answer.choices[0].text + " more")
    assert server.forks == {"history_changed": 1}


async def test_blanks_that_a_client_strips_off_an_answer_are_no_dropped_thoughts():
    server = managed("  fine\n", "two")
    answer = await server.chat_completion(messages=[QUESTION])
    stripped = {"role": "assistant", "content": answer.choices[0].message.content.strip()}
    await server.chat_completion(messages=[QUESTION, stripped, {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 1
    assert not server.forks


async def test_a_message_changed_while_its_answer_is_made_is_noticed():
    server = managed("one", "two")
    server.server._delay_s = 0.05
    messages = [dict(QUESTION)]
    asking = asyncio.create_task(server.chat_completion(messages=messages))
    await asyncio.sleep(0.01)
    messages[0]["content"] = "Something else"
    answer = await asking
    await server.chat_completion(messages=[*messages, reply(answer), {"role": "user", "content": "More"}])
    assert server.forks == {"history_changed": 1}


async def test_choices_that_nobody_asked_for_are_not_recorded():
    class Generous(ScriptedServer):
        async def generate(self, **arguments):
            answer = await super().generate(**arguments)
            return Generation(answer.prompt_ids, answer.completions * 2)

    server = ManagedServer(Generous(["one"], tokenizer=TOKENIZER), TOKENIZER)
    answer = await server.chat_completion(messages=[QUESTION])
    assert (len(answer.choices), len(nodes(server))) == (1, 1)


async def test_closing_an_answer_that_was_cut_is_no_fork():
    server = managed({"content": "cut", "finish_reason": "length", "token_ids": TOKENIZER.encode("cut")}, "two")
    answer = await server.chat_completion(messages=[QUESTION])
    await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 1
    assert not server.forks


async def test_what_is_kept_though_the_template_would_change_it_is_counted():
    thought = {"content": "Hello.", "reasoning_content": "greet"}
    server = managed(thought, "Bye.", tokenizer=ByteTokenizer(FORGETFUL), preserve_think_blocks=True)
    answer = await server.chat_completion(messages=[QUESTION])
    await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 1
    assert server.kept == {"history_changed_by_template": 1}


# a template that writes an empty thought before the answer it asks for, and before none of the past
HEADED = CHATML_TEMPLATE.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n</think>\\n' }}")


async def test_thoughts_that_a_client_drops_fork_also_where_the_header_changes():
    assert HEADED != CHATML_TEMPLATE
    thought = {"content": "Hello.", "reasoning_content": "greet"}
    server = managed(thought, "Bye.", tokenizer=ByteTokenizer(HEADED))
    await server.chat_completion(messages=[QUESTION])
    dropped = {"role": "assistant", "content": "Hello."}
    await server.chat_completion(messages=[QUESTION, dropped, {"role": "user", "content": "More"}])
    assert server.forks == {"thoughts_dropped_by_client": 1}


async def test_a_header_that_the_template_writes_only_before_the_next_answer_is_kept_and_counted():
    server = managed("Hello.", "Bye.", tokenizer=ByteTokenizer(HEADED))
    answer = await server.chat_completion(messages=[QUESTION])
    await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 1
    assert server.kept == {"header_changed_by_template": 1}


OPENING = CHATML_TEMPLATE.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")


async def test_a_thought_that_the_prompt_opens_is_shown_whole_and_its_calls_are_none():
    assert OPENING != CHATML_TEMPLATE
    said = 'I could <tool_call>\n{"name": "terminal", "arguments": {}}\n</tool_call>, but no.\n</think>\n\nIt is 4.'
    server = managed(said, "two", tokenizer=ByteTokenizer(OPENING), preserve_think_blocks=True)
    answer = await server.chat_completion(messages=[QUESTION], tools=TOOLS)
    message = answer.choices[0].message
    assert message.content == "<think>\n" + said
    assert not message.tool_calls
    without = {"role": "assistant", "content": "It is 4."}
    await server.chat_completion(messages=[QUESTION, without, {"role": "user", "content": "More"}], tools=TOOLS)
    (node,) = nodes(server)
    assert node.full_text.count("<think>") == 2
    assert not server.forks


async def test_what_a_client_says_beside_the_content_is_part_of_its_messages():
    reading = CHATML_TEMPLATE.replace("(message.content", "(message.reasoning_content or '') + (message.content")
    server = managed("one", "two", tokenizer=ByteTokenizer(reading))
    first = [{"role": "assistant", "content": "Hi.", "reasoning_content": "A"}, QUESTION]
    answer = await server.chat_completion(messages=first)
    changed = [{**first[0], "reasoning_content": "B"}, QUESTION, reply(answer), QUESTION]
    await server.chat_completion(messages=changed)
    assert server.forks == {"history_changed": 1}


async def test_what_a_client_adds_beside_our_own_answer_changes_nothing():
    server = managed("one", "two")
    answer = await server.chat_completion(messages=[QUESTION])
    shown = {**reply(answer), "name": "bot", "reasoning_content": "made up"}
    await server.chat_completion(messages=[QUESTION, shown, {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 1


async def test_a_request_under_way_is_forgotten_by_a_reset():
    server = managed("one", "two", "three")
    server.server._delay_s = 0.05
    asking = asyncio.create_task(server.chat_completion(messages=[QUESTION]))
    await asyncio.sleep(0.01)
    server.reset()
    answer = await asking
    assert nodes(server) == []
    await server.chat_completion(messages=[QUESTION, reply(answer), QUESTION])
    assert len(nodes(server)) == 1


async def test_a_message_changed_in_place_is_noticed():
    server = managed("one", "two")
    messages = [dict(QUESTION)]
    answer = await server.chat_completion(messages=messages)
    messages[0]["content"] = "Something else"
    await server.chat_completion(messages=[*messages, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 2
    assert "Something else" in nodes(server)[1].full_text


async def test_a_call_changed_in_place_is_noticed():
    server = managed(LS, "There is file.py.", "two")
    _, messages = await play(server, [QUESTION], result, [])
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"command": "pwd"}'
    await server.chat_completion(messages=[*messages, {"role": "user", "content": "More"}], tools=TOOLS)
    assert server.forks == {"history_changed": 1}
    assert '"pwd"' in nodes(server)[1].full_text


async def test_messages_that_only_look_different_are_continued():
    server = managed(LS, "There is file.py.", "two")
    _, messages = await play(server, [QUESTION], result, [])
    parts = [{"type": "text", "text": QUESTION["content"]}]
    shown = [{"role": "user", "content": parts, "name": None}, {**messages[1], "refusal": None}, *messages[2:]]
    await server.chat_completion(messages=[*shown, {"role": "user", "content": "More"}], tools=TOOLS)
    (node,) = nodes(server)
    assert node.metadata["turns"] == 3


async def test_objects_of_the_openai_package_are_taken_as_messages_and_as_calls():
    server = managed(LS, LS, "Done.")
    messages = [QUESTION]
    for wrap in (lambda said: said, lambda said: {"role": "assistant", "tool_calls": said.tool_calls}):
        answer = await server.chat_completion(messages=messages, tools=TOOLS)
        said = answer.choices[0].message
        messages += [wrap(said), result(said.tool_calls[0])]
    await server.chat_completion(messages=messages, tools=TOOLS)
    (node,) = nodes(server)
    assert node.metadata["turns"] == 3


async def test_an_answer_tells_the_logprob_of_every_token_where_asked():
    server = managed({"content": "né", "logprobs": [-0.1, -0.2, -0.3, -0.4]})
    answer = await server.chat_completion(messages=[QUESTION], logprobs=True, top_logprobs=3)
    told = answer.choices[0].logprobs.content
    assert [each.logprob for each in told] == [-0.1, -0.2, -0.3, -0.4]
    assert [each.token for each in told] == ["n", "\ufffd", "\ufffd", "<|im_end|>"]
    assert [each.bytes for each in told] == [[110], None, None, list(b"<|im_end|>")]
    plain = await managed("ok").chat_completion(messages=[QUESTION])
    assert plain.choices[0].logprobs is None


async def test_other_tools_are_another_prompt():
    server = managed("one", "two")
    answer = await server.chat_completion(messages=[QUESTION], tools=TOOLS)
    await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)) == 2


async def test_dropped_thoughts_fork_where_the_template_drops_them():
    thought = {"content": "Hello.", "reasoning_content": "greet"}
    server = managed(thought, "Bye.", tokenizer=ByteTokenizer(FORGETFUL))
    await play(server, [QUESTION], [{"role": "user", "content": "More"}], [])
    first, second = nodes(server)
    assert "<think>\ngreet\n</think>" in first.full_text
    assert "<think>" not in second.full_text
    assert TOKENIZER.decode(trained(second)) == "Bye.<|im_end|>"
    assert server.forks == {"history_changed_by_template": 1}


async def test_thoughts_stay_within_a_tool_loop_where_the_template_keeps_them():
    thought = {**LS, "reasoning_content": "look"}
    server = managed(thought, "Done.", tokenizer=ByteTokenizer(FORGETFUL))
    await play(server, [QUESTION], result, [])
    assert len(nodes(server)) == 1
    assert not server.forks


async def test_preserved_thoughts_are_appended_to_whatever_the_template_says():
    thought = {"content": "Hello.", "reasoning_content": "greet"}
    server = managed(thought, "Bye.", tokenizer=ByteTokenizer(FORGETFUL), preserve_think_blocks=True)
    await play(server, [QUESTION], [{"role": "user", "content": "More"}], [])
    (node,) = nodes(server)
    assert "<think>\ngreet\n</think>" in node.full_text
    assert not server.forks


async def test_a_client_that_drops_thoughts_forks_or_keeps_by_the_same_policy():
    thought = {"content": "Hello.", "reasoning_content": "greet"}
    for preserve, sequences in ((False, 2), (True, 1)):
        server = managed(thought, "Bye.", preserve_think_blocks=preserve)
        await server.chat_completion(messages=[QUESTION])
        shown = {"role": "assistant", "content": "Hello."}
        await server.chat_completion(messages=[QUESTION, shown, {"role": "user", "content": "More"}])
        assert len(nodes(server)) == sequences


async def test_template_variables_reach_the_template_and_not_the_engine():
    template = "{{ mood }}" + CHATML_TEMPLATE
    server = managed("x", tokenizer=ByteTokenizer(template))
    await server.chat_completion(messages=[QUESTION], extra_body={"chat_template_kwargs": {"mood": "calm"}, "top_k": 3})
    assert nodes(server)[0].full_text.startswith("calm<|im_start|>")
    assert server.server.requests[0].arguments["extra_body"] == {"top_k": 3}


async def test_a_text_completion_continues_by_text_and_keeps_what_was_sampled():
    server = managed("world", "again")
    first = await server.completion(prompt="<|im_start|>hello ", max_tokens=50, n=1)
    assert first.choices[0].text == "world"
    (node,) = nodes(server)
    second = node.full_text + "\nmore "
    await server.completion(prompt=second, max_tokens=50)
    (node,) = nodes(server)
    assert node.full_text == second + "again<|im_end|>"
    assert TOKENIZER.decode(trained(node)) == "world<|im_end|>again<|im_end|>"


async def test_a_completion_takes_ids_too():
    server = managed("b", "d")
    await server.completion(input_ids=[97], max_tokens=50)
    await server.completion(prompt=[97, 98, EOS, 99], max_tokens=50)
    (node,) = nodes(server)
    assert node.tokens == [97, 98, EOS, 99, 100, EOS]
    assert node.masked_tokens == [-100, 98, EOS, -100, 100, EOS]


@pytest.mark.parametrize("prompt", [[], ["a", "b"], None, [[1]]])
async def test_a_completion_of_anything_else_is_refused(prompt):
    with pytest.raises(ConfigError, match="one prompt"):
        await managed("x").completion(prompt=prompt)


async def test_tree_mode_reports_every_completion_by_its_text():
    server = managed(LS, "Done.", track_tree=True)
    await play(server, [QUESTION], result, [])
    state = server.get_state()
    assert state["sequences"] is state["tree"]
    assert [node.metadata["turns"] for node in state["sequences"].values()] == [1, 2]
    assert all(text == node.full_text for text, node in state["sequences"].items())


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"token_ids": [65, 66], "logprobs": [-0.1]}, "logprobs_misaligned"),
        ({"token_ids": [65], "logprobs": [None]}, "logprob_missing"),
        ({"token_ids": [70_000], "logprobs": [-0.1]}, "id_outside_vocabulary"),
    ],
)
async def test_a_sample_that_does_not_line_up_is_refused_and_not_recorded(odd, reason):
    server = managed(odd)
    with pytest.raises(RolloutInvalid) as refused:
        await server.chat_completion(messages=[QUESTION])
    assert refused.value.reason == reason
    assert nodes(server) == []


async def test_an_engine_that_consumes_other_ids_is_not_token_exact():
    class AddsAnId(ScriptedServer):
        async def _generate_wrapper(self, **kwargs):
            answer = await super()._generate_wrapper(**kwargs)
            return Generation([1, *answer.prompt_ids], answer.completions)

    server = ManagedServer(AddsAnId(["x"]), TOKENIZER)
    with pytest.raises(NotTokenExact, match="from position 0 on"):
        await server.chat_completion(messages=[QUESTION])


async def test_the_last_turn_shrinks_to_the_room_that_is_left_and_then_the_context_is_full():
    server = managed("abcdefghijklmnop", "never", max_rollout_tokens=40)
    answer = await server.chat_completion(messages=[QUESTION], max_tokens=1000)
    used = answer.usage.prompt_tokens
    assert server.server.requests[0].arguments["max_tokens"] == 40 - used
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(ContextFull, match="the limit is 40"):
        await server.chat_completion(messages=[QUESTION, reply(answer), {"role": "user", "content": "More"}])
    assert len(nodes(server)[0].tokens) == 40


async def test_a_certificate_describes_and_seals_a_sample():
    server = managed({**LS, "policy_version": "1"}, {"content": "Done.", "policy_version": "2"})
    await play(server, [QUESTION], result, [])
    (node,) = nodes(server)
    certificate = server.certificate(node)
    assert certificate["rollout_id"] == server.rollout_id
    assert (certificate["engine"], certificate["model"]) == ("scripted", "scripted")
    assert (certificate["turns"], certificate["forks"], certificate["policy_versions"]) == (2, 0, ["1", "2"])
    assert certificate["sampled_tokens"] == len(trained(node))
    assert certificate["digest"] == digest(node.tokens, node.masked_tokens, node.logprobs)


async def test_reset_begins_a_new_rollout():
    server = managed("a", "b")
    await server.chat_completion(messages=[QUESTION])
    before = server.rollout_id
    server.reset()
    assert nodes(server) == []
    assert server.rollout_id != before


async def test_the_adapter_looks_like_a_client_of_the_openai_package():
    client = ManagedServerAdapter(managed("a", "b"), base_url="http://h/v1")
    assert (await client.chat.completions.create(messages=[QUESTION])).choices[0].message.content == "a"
    assert (await client.completions.create(prompt="x")).choices[0].text == "b"
    assert client.base_url == "http://h/v1"
    with pytest.raises(NotImplementedError):
        await client.post("/x")
    with pytest.raises(NotImplementedError):
        client.copy()


async def test_placeholders_are_refused_unless_allowed():
    with pytest.raises(NotTokenExact, match="placeholders are not allowed"):
        DummyManagedServer(ScriptedServer(["a"])).get_state()


async def test_a_rollout_without_a_tokenizer_says_what_to_pass():
    class Bare(ScriptedServer):
        tokenizer = None

        def __init__(self):
            super().__init__()
            self.tokenizer = None

    with pytest.raises(ConfigError, match="managed_server"):
        ManagedServer(Bare())


async def test_over_http_the_ids_and_logprobs_are_those_of_the_engine():
    engine = StubEngine(weight_version="step-3")
    async with (
        serving(engine) as url,
        ServerManager(APIServerConfig(base_url=url)) as manager,
        manager.managed_server(tokenizer=TOKENIZER) as server,
    ):
        await play(server, [QUESTION], [{"role": "user", "content": "More"}], [], max_tokens=20)
        (node,) = nodes(server)
    check_shape(node)
    probe, *bodies = engine.bodies("/v1/completions")
    assert probe["prompt"] == [1]
    assert node.tokens[: len(bodies[1]["prompt"])] == bodies[1]["prompt"]
    assert node.metadata["policy_versions"] == ["step-3"]


def _scripted_answers(tokenizer, end, thought=""):
    """What a model might say, in ids, each after a thought, ended as this model ends its turns."""
    said = [
        'I look.<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>',
        '\n\n<tool_call>{"name":"terminal","arguments":{"command":"echo \\"</tool_call>\\""}}</tool_call>',
        "<tool_call>\n{broken\n</tool_call>",
        "",
        " trailing blanks  \n",
        "\u00fcml\u00e4ut \U0001f642 and <|not special|>",
    ]
    for text in said:
        yield {"token_ids": tokenizer.encode(thought + text + end, add_special_tokens=False)}
    yield {"token_ids": tokenizer.encode("cut off", add_special_tokens=False), "finish_reason": "length"}
    yield {"token_ids": tokenizer.encode("The end." + end, add_special_tokens=False)}


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in template_files()])
@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"], ids=["plain", "thinking"])
@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>", "<eos>"])
async def test_under_every_template_what_is_fed_is_what_is_stored(file, end, thought):
    tokenizer = tokenizer_with(file.read_text())
    engine = ScriptedServer(
        [SampledReply.of(r) for r in _scripted_answers(tokenizer, end, thought)], tokenizer=tokenizer
    )
    server = ManagedServer(engine, tokenizer, tool_parser="hermes")
    messages, prompts = [QUESTION], []
    takes_tools = file.stem not in WITHOUT_TOOLS
    for turn in range(8):
        answer = await server.chat_completion(messages=messages, tools=TOOLS if takes_tools else None, n=1)
        prompts.append(engine.requests[-1].input_ids)
        calls = answer.choices[0].message.tool_calls or []
        messages = [*messages, reply(answer), *(result(call, f"\nout {turn}\n") for call in calls)]
        messages += [] if calls else [{"role": "user", "content": f"More {turn}"}]
    recorded = nodes(server)
    for node in recorded:
        check_shape(node)
    for prompt in prompts:
        assert any(node.tokens[: len(prompt)] == prompt for node in recorded)
    assert len(recorded) == 1 + server.forks.total()
    assert thought or not server.forks


class SampledReply(dict):
    """A reply in ids with a logprob for each."""

    @classmethod
    def of(cls, values):
        ids = values["token_ids"]
        return cls(values, logprobs=[-0.01 * (1 + i % 5) for i in range(len(ids))])


async def test_a_format_that_marks_plain_answers_is_read_without_tools_too():
    answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 4."
    server = ScriptedServer([answer])
    managed = ManagedServer(server, server.tokenizer, tool_parser="harmony")
    told = await managed.chat_completion(messages=[{"role": "user", "content": "2 + 2?"}])
    assert told.choices[0].message.content == "<think>\nHm.\n</think>\n\nIt is 4."
    assert managed.get_state()["nodes"][0].full_text.endswith(answer + "<|im_end|>")
