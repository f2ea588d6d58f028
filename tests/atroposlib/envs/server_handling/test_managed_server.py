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
)
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError, ContextFull, NotTokenExact, RolloutInvalid
from tests.atroposlib.envs.server_handling.played_rollouts import (
    EOS,
    LS,
    QUESTION,
    SYSTEM,
    TOKENIZER,
    check_shape,
    managed,
    nodes,
    play,
    reply,
    result,
    trained,
)
from tests.atroposlib.envs.server_handling.real_tokenizers import WITHOUT_TOOLS, template_files, tokenizer_with
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving
from tests.atroposlib.envs.server_handling.tools import TOOLS


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


async def test_an_answer_without_a_limit_gets_the_room_that_the_engine_has():
    server = ManagedServer(ScriptedServer(["a"], max_model_len=100), TOKENIZER)
    answer = await server.chat_completion(messages=[QUESTION])
    assert server.server.requests[0].arguments["max_tokens"] == 100 - answer.usage.prompt_tokens


async def test_an_inexact_engine_is_found_out_without_a_manager_too():
    with pytest.raises(NotTokenExact, match="the script says so"):
        await ManagedServer(ScriptedServer(["a"], token_exact=False), TOKENIZER).chat_completion(messages=[QUESTION])


async def test_choices_that_nobody_asked_for_are_not_recorded():
    class Generous(ScriptedServer):
        async def generate(self, **arguments):
            answer = await super().generate(**arguments)
            return Generation(answer.prompt_ids, answer.completions * 2)

    server = ManagedServer(Generous(["one"], tokenizer=TOKENIZER), TOKENIZER)
    answer = await server.chat_completion(messages=[QUESTION])
    assert (len(answer.choices), len(nodes(server))) == (1, 1)


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
