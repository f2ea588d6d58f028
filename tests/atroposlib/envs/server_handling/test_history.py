"""What is one conversation and what is another: histories that are continued, forked, or kept and counted."""

import asyncio

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from tests.atroposlib.envs.server_handling.played_rollouts import (
    FORGETFUL,
    LS,
    QUESTION,
    TOKENIZER,
    managed,
    nodes,
    play,
    reply,
    result,
    trained,
)
from tests.atroposlib.envs.server_handling.tools import TOOLS


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
