"""The wires of vLLM, of Atropos' patched vLLM, of SGLang and of TRL's servers: the same rollouts over each."""

import asyncio
import json

import pytest
from aiohttp import web

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable, NotTokenExact
from tests.atroposlib.envs.server_handling.stub_engine import EOS, StubEngine, echo, logprob, serving

PROMPT = list(b"tell me more")


def reason(sampled):
    return "stop" if sampled[-1:] == [EOS] else "length"


def ids_of(prompt):
    return ByteTokenizer().encode(prompt) if isinstance(prompt, str) else prompt


class PatchedVllm(StubEngine):
    """Atropos' patched server: no OpenAI routes, ``POST /generate``."""

    def routes(self):
        return {"GET /health": self._health, "POST /generate": self._generate}

    async def _generate(self, request):
        body = json.loads(await request.read())
        prompt = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"]["prompt_token_ids"]
        prompt = ids_of(prompt)
        sampled = echo(prompt, body.get("max_tokens") or 16)
        rows = [[{str(token): logprob(i, token)}] for i, token in enumerate(sampled)]
        n = min(body.get("n") or 1, self.max_n)
        return web.json_response(
            {
                "text": [""] * n,
                "logprobs": [rows] * n,
                "finish_reasons": [reason(sampled)] * n,
                "prompt_token_ids": prompt,
            }
        )


class Sglang(StubEngine):
    """SGLang: ``POST /generate`` beside OpenAI's routes; one dict for one answer, a list for several."""

    def routes(self):
        return {
            "GET /health": self._health,
            "GET /v1/models": self._models,
            "POST /v1/chat/completions": self._chat,
            "POST /generate": self._generate,
        }

    async def _generate(self, request):
        body = json.loads(await request.read())
        prompt, sampling = ids_of(body.get("text") or body["input_ids"]), body["sampling_params"]
        sampled = echo(prompt, sampling["max_new_tokens"])
        told = {
            "finish_reason": {"type": reason(sampled)},
            "output_token_logprobs": [[logprob(i, token), token, None] for i, token in enumerate(sampled)],
            "weight_version": "step-3",
        }
        if body.get("logprob_start_len") == 0:
            told["input_token_logprobs"] = [[None, prompt[0], None]] + [[-0.5, token, None] for token in prompt[1:]]
            told["input_top_logprobs"] = [None] + [[[-2.0, 7, None], [-0.5, token, None]] for token in prompt[1:]]
        answers = [{"text": "", "output_ids": sampled, "meta_info": told}] * min(sampling.get("n") or 1, self.max_n)
        return web.json_response(answers if len(answers) > 1 else answers[0])


class OldTrl(StubEngine):
    """The server TRL had before it served stock vLLM."""

    def __init__(self, nested=True, with_logprobs=True):
        super().__init__()
        self.nested, self.with_logprobs = nested, with_logprobs

    def routes(self):
        return {"GET /health/": self._health, "POST /generate/": self._generate}

    async def _generate(self, request):
        body = json.loads(await request.read())
        prompt = ids_of(body["prompts"][0])
        sampled = echo(prompt, body.get("max_tokens") or 16)
        row = [logprob(i, token) for i, token in enumerate(sampled)]
        n = min(body.get("n") or 1, self.max_n)
        answer = {"prompt_ids": [prompt], "completion_ids": [sampled] * n}
        if self.with_logprobs:
            answer["logprobs"] = [[[value] for value in row] if self.nested else row] * n
        return web.json_response(answer)


ENGINES = [
    pytest.param(StubEngine, "openai", id="openai"),
    pytest.param(StubEngine, "vllm", id="vllm"),
    pytest.param(PatchedVllm, "vllm", id="patched-vllm"),
    pytest.param(Sglang, "sglang", id="sglang"),
    pytest.param(StubEngine, "trl", id="trl"),
    pytest.param(OldTrl, "trl", id="old-trl"),
    pytest.param(lambda: OldTrl(nested=False), "trl", id="old-trl-flat"),
]


@pytest.fixture
async def manager(request):
    make, server_type = request.param
    engine = make()
    async with (
        serving(engine) as url,
        ServerManager(APIServerConfig(base_url=url, server_type=server_type, max_retries=0)) as manager,
    ):
        manager.engine = engine
        yield manager


engines = pytest.mark.parametrize("manager", [pytest.param(p.values, id=p.id) for p in ENGINES], indirect=True)


@engines
async def test_ids_and_logprobs_come_out_as_the_engine_sampled_them(manager):
    expected = echo(PROMPT, 100)
    answer = await manager.tokens_and_logprobs_completion(input_ids=PROMPT, max_tokens=100, n=2, temperature=1.0)
    logprobs = [logprob(i, token) for i, token in enumerate(expected)]
    assert answer == (PROMPT, [expected] * 2, [logprobs] * 2, ["stop"] * 2)


@engines
@pytest.mark.parametrize("max_n", [1, 2])
async def test_an_engine_that_gives_fewer_completions_is_asked_for_the_rest(manager, max_n):
    manager.engine.max_n = max_n
    for _ in range(2):
        answer = await manager.generate(input_ids=PROMPT, max_tokens=9, n=4)
        assert [completion.ids for completion in answer.completions] == [echo(PROMPT, 9)] * 4
    async with manager.managed_server(tokenizer=ByteTokenizer()) as managed:
        chat = await managed.chat_completion(messages=[{"role": "user", "content": "hi"}], max_tokens=9, n=3)
        assert len(managed.get_state()["nodes"]) == len(chat.choices) == 3


@engines
async def test_an_answer_that_is_cut_says_so(manager):
    _, _, _, reasons = await manager.tokens_and_logprobs_completion(input_ids=PROMPT, max_tokens=3)
    assert reasons == ["length"]


@engines
async def test_the_engine_is_ready_and_token_exact(manager):
    await manager.wait_until_ready()
    facts = await manager.probe()
    assert (facts.token_exact, facts.reason) == (True, "")


@engines
async def test_a_rollout_of_two_turns_is_recorded_as_one_sequence(manager):
    tokenizer = ByteTokenizer()
    messages = [{"role": "user", "content": "hello"}]
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        for _ in range(2):
            answer = await managed.chat_completion(messages=messages, max_tokens=20)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
            messages += [{"role": "user", "content": "more"}]
        (node,) = managed.get_state()["nodes"]
    assert node.metadata["turns"] == 2
    assert node.full_text == tokenizer.decode(node.tokens)


class ShiftedTokenizer(ByteTokenizer):
    """As many ids as the engine's own, each with another meaning."""

    name_or_path = "shifted"

    def encode(self, text, add_special_tokens=True):
        return [(number + 1) % 256 if number < 256 else number for number in super().encode(text)]

    def decode(self, token_ids, skip_special_tokens=False, **_):
        return super().decode([(number - 1) % 256 if number < 256 else number for number in token_ids])


@engines
async def test_a_tokenizer_of_another_model_is_refused_with_the_ids_of_both(manager):
    said = (
        r"--env\.tokenizer_name 'shifted' is not the tokenizer of the model at http://127.*: 'The quick.*"
        r" is \[84, 104, 101, 32.*\] there and \[85, 105, 102, 33.*\] here"
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=said):
            async with manager.managed_server(tokenizer=ShiftedTokenizer()):
                pass
    with pytest.raises(ConfigError, match=said):
        await manager.check_tokenizer(ShiftedTokenizer())


@engines
async def test_the_right_tokenizer_costs_one_more_request_once(manager):
    async def roll_out():
        async with manager.managed_server(tokenizer=ByteTokenizer()):
            pass

    def completions():
        return len([path for path in manager.engine.paths() if not path.endswith("/models")])

    await manager.probe()
    before = completions()
    await asyncio.gather(*(roll_out() for _ in range(5)))
    assert completions() == before + 1


@pytest.mark.parametrize("manager", [(StubEngine, "vllm")], indirect=True)
async def test_an_unknown_model_is_not_taken_for_another_dialect(manager):
    manager.servers[0].config.model_name = "stub"
    manager.engine.failures = [404]
    with pytest.raises(EngineRefused, match="planned failure 404"):
        await manager.generate(input_ids=PROMPT)
    assert (await manager.generate(input_ids=PROMPT, max_tokens=4)).prompt_ids == PROMPT


@pytest.mark.parametrize("manager", [(PatchedVllm, "vllm")], indirect=True)
async def test_the_patched_server_is_found_once_and_remembered(manager):
    for _ in range(3):
        await manager.generate(input_ids=PROMPT, max_tokens=4)
    assert manager.engine.paths().count("/v1/completions") == 1
    assert manager.engine.paths().count("/generate") == 3


@pytest.mark.parametrize("manager", [(StubEngine, "vllm")], indirect=True)
@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_request_that_the_engine_breaks_off_is_a_failure_that_may_pass(manager, reason):
    manager.engine.change = lambda answer: answer["choices"][0].update(finish_reason=reason)
    with pytest.raises(EngineUnavailable, match=f"broke off the request .finish_reason '{reason}'"):
        await manager.generate(input_ids=PROMPT)


@pytest.mark.parametrize("manager", [(lambda: OldTrl(with_logprobs=False), "trl")], indirect=True)
async def test_an_old_trl_without_logprobs_is_not_token_exact(manager):
    facts = await manager.probe()
    assert not facts.token_exact
    assert "logprobs" in facts.reason
    with pytest.raises(NotTokenExact, match="TRL"):
        await manager.generate(input_ids=PROMPT)


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
async def test_an_old_trl_answers_chats_and_texts_too(manager):
    manager.servers[0].tokenizer = ByteTokenizer()
    chat = await manager.chat_completion(messages=[{"role": "user", "content": "hello"}], max_tokens=5)
    text = await manager.completion(prompt="hello", max_tokens=5)
    assert chat.choices[0].message.content == "tnats"
    assert text.choices[0].text == "olleh"


SAMPLING = {"seed": 3, "stop": ["x"], "presence_penalty": 0.5, "min_tokens": 1, "stop_token_ids": [7]}


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
async def test_an_old_trl_gets_sampling_parameters_where_it_reads_them(manager):
    manager.servers[0].tokenizer = ByteTokenizer()
    asked = {"max_tokens": 5, "top_k": 4, "model": "m", "user": "u", "timeout": 9, **SAMPLING}
    await manager.generate(input_ids=PROMPT, extra_body={"min_p": 0.1}, **asked)
    await manager.completion(prompt="hello", tools=None, logprobs=None, extra_body={"min_p": 0.1}, **asked)
    chat = [{"role": "user", "content": "hello"}]
    answer = await manager.chat_completion(messages=chat, tool_choice="auto", extra_body={"min_p": 0.1}, **asked)
    assert answer.choices[0].finish_reason == "length"
    for body in manager.engine.bodies("/generate/"):
        prompts, logprobs = body.pop("prompts"), body.pop("logprobs")
        assert (len(prompts), logprobs) == (1, 0)
        assert body == {"max_tokens": 5, "top_k": 4, "min_p": 0.1, "generation_kwargs": SAMPLING}


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
async def test_the_other_name_of_the_limit_reaches_an_old_trl(manager):
    manager.servers[0].tokenizer = ByteTokenizer()
    chat = await manager.chat_completion(messages=[{"role": "user", "content": "hello"}], max_completion_tokens=5)
    assert chat.choices[0].message.content == "tnats"


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"65": -100}),
        ("response_format", {"type": "json_object"}),
        ("truncate_prompt_tokens", 5),
        ("structured_outputs", {"regex": "a"}),
        ("priority", 1),
    ],
)
async def test_what_an_old_trl_has_no_place_for_is_refused_by_name(manager, name, value):
    manager.servers[0].tokenizer = ByteTokenizer()
    for asked in ({name: value}, {"extra_body": {name: value}}):
        with pytest.raises(ConfigError, match=f"^{name}: .* has no place for it; leave it out"):
            await manager.generate(input_ids=PROMPT, **asked)
        with pytest.raises(ConfigError, match=f"^{name}: "):
            await manager.completion(prompt="hello", **asked)
        with pytest.raises(ConfigError, match=f"^{name}: "):
            await manager.chat_completion(messages=[{"role": "user", "content": "hello"}], **asked)
    assert manager.engine.bodies("/generate/") == []
    with pytest.raises(ConfigError, match=r"^logprobs: "):
        await manager.completion(prompt="hello", logprobs=0)


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
@pytest.mark.parametrize(
    ("name", "value"), [("logprobs", True), ("stream", True), ("tool_choice", "required"), ("top_logprobs", 2)]
)
async def test_a_chat_with_an_old_trl_refuses_what_it_could_not_answer(manager, name, value):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        await manager.chat_completion(messages=[{"role": "user", "content": "hello"}], **{name: value})


@pytest.mark.parametrize("manager", [(OldTrl, "trl")], indirect=True)
async def test_a_chat_with_an_old_trl_gives_the_template_its_variables(manager):
    manager.servers[0].tokenizer = ByteTokenizer("{{ mood }}{{ messages[0].content }}{{ tools }}")
    asked = {"messages": [{"role": "user", "content": "hello"}], "tools": [{}], "tool_choice": "none", "max_tokens": 5}
    for variables in (
        {"chat_template_kwargs": {"mood": "sad "}},
        {"extra_body": {"chat_template_kwargs": {"mood": "sad "}}},
    ):
        await manager.chat_completion(**asked, **variables)
    assert [body["prompts"] for body in manager.engine.bodies("/generate/")] == [["sad helloNone"]] * 2


@pytest.mark.parametrize("manager", [(lambda: OldTrl(with_logprobs=False), "trl")], indirect=True)
async def test_a_trl_that_may_pass_over_a_parameter_is_named_once(manager, caplog):
    manager.servers[0].tokenizer = ByteTokenizer()
    for seed in (1, 2):
        await manager.completion(prompt="hello", max_tokens=5, seed=seed)
    assert [record.message for record in caplog.records if "may pass over seed" in record.message] == [
        f"{manager.servers[0].config.base_url} is an old TRL (before 0.23) and may pass over seed; use a newer one"
    ]


def with_prompt_logprobs(answer):
    scored = {"65": {"logprob": -2.0}, "66": {"logprob": -0.1}, "67": {"logprob": -0.5}}
    answer["choices"][0]["prompt_logprobs"] = [None, scored]


@pytest.mark.parametrize("manager", [(StubEngine, "vllm"), (StubEngine, "openai")], indirect=True)
async def test_vllm_scores_a_given_text(manager):
    manager.engine.change = with_prompt_logprobs
    scores = await manager.get_logprobs(input_ids=[65, 66], top_k=2)
    assert scores == {
        "prompt_tokens": [65, 66],
        "prompt_topk_token_ids": [[], [66, 67]],
        "prompt_topk_logprobs": [[], [-0.1, -0.5]],
    }
    sent = manager.engine.bodies("/v1/completions")[0]
    assert (sent["prompt_logprobs"], sent["max_tokens"], sent["temperature"]) == (2, 1, 0.0)
    assert "top_k" not in sent


@pytest.mark.parametrize("manager", [(Sglang, "sglang")], indirect=True)
async def test_sglang_scores_a_given_text(manager):
    scores = await manager.get_logprobs(input_ids=[65, 66], top_k=1)
    assert scores == {
        "prompt_tokens": [65, 66],
        "prompt_topk_token_ids": [[], [66]],
        "prompt_topk_logprobs": [[], [-0.5]],
    }


@pytest.mark.parametrize("manager", [(Sglang, "sglang")], indirect=True)
async def test_sglang_gets_its_own_names_and_what_is_no_sampling_parameter_beside_them(manager):
    await manager.generate(input_ids=PROMPT, max_tokens=4, seed=3, stop=["x"], extra_body={"priority": 1}, timeout=9)
    (body,) = manager.engine.bodies("/generate")
    assert body["sampling_params"] == {"max_new_tokens": 4, "sampling_seed": 3, "stop": ["x"]}
    assert (body["priority"], body["return_logprob"]) == (1, True)


@pytest.mark.parametrize("manager", [(StubEngine, "vllm")], indirect=True)
async def test_an_engine_that_cannot_score_says_so(manager):
    manager.engine.change = lambda answer: answer["choices"][0].update(prompt_logprobs=None)
    with pytest.raises(NotTokenExact, match="does not score"):
        await manager.get_logprobs(input_ids=PROMPT)
