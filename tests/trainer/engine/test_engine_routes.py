"""The engine over HTTP, as environments and trainers see it."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from tests.machine import until
from tests.trainer.tiny_model import CONTEXT, make_model, make_tokenizer, save_policy
from trainer.engine.scheduler import Engine

Http = aiohttp.ClientSession
TERMINAL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}


async def _post(http: Http, path: str, status: int = 200, **body: Any) -> Any:
    async with http.post(path, json=body) as answer:
        content = await answer.json(content_type=None)
        assert answer.status == status, content
        return content


async def _get(http: Http, path: str) -> Any:
    async with http.get(path) as answer:
        return await answer.json(content_type=None)


async def test_completion_of_ids_answers_with_ids_and_logprobs_of_the_model(http: Http) -> None:
    prompt = [5, 6, 7, 8, 9]
    answer = await _post(http, "/v1/completions", prompt=prompt, max_tokens=6, logprobs=0, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == prompt
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
    with torch.inference_mode():
        logits = make_model()(torch.tensor([prompt + choice["token_ids"]])).logits[0, 4:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(choice["token_ids"])[:, None])[:, 0]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=2e-5)


async def test_several_prompts_and_samples_come_in_order(http: Http) -> None:
    answer = await _post(
        http, "/v1/completions", prompt=[[5, 6], [7, 8, 9]], n=2, max_tokens=3, return_token_ids=True, ignore_eos=True
    )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[5, 6], [5, 6], [7, 8, 9], [7, 8, 9]]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


async def test_text_prompt_is_tokenized_and_max_tokens_defaults_to_sixteen(http: Http) -> None:
    answer = await _post(http, "/v1/completions", prompt="hello", ignore_eos=True, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == make_tokenizer().encode("hello")
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (16, "length")


async def test_same_seed_same_tokens_and_greedy_is_always_the_same(http: Http) -> None:
    async def ids(**params: Any) -> list[int]:
        answer = await _post(http, "/v1/completions", prompt=[9, 9], max_tokens=8, return_token_ids=True, **params)
        return answer["choices"][0]["token_ids"]

    assert await ids(seed=3) == await ids(seed=3)
    assert await ids(temperature=0) == await ids(temperature=0)
    assert len({tuple(await ids()) for _ in range(4)}) > 1


async def test_stop_string_ends_text_before_it_and_stop_token_is_reported(http: Http) -> None:
    body = {"prompt": [9, 9], "max_tokens": 60, "seed": 1, "return_token_ids": True, "ignore_eos": True}
    free = (await _post(http, "/v1/completions", **body))["choices"][0]
    stop = next(letter for letter in free["text"][3:] if letter.isalpha() and letter.isascii())
    choice = (await _post(http, "/v1/completions", **body, stop=[stop]))["choices"][0]
    assert choice["text"] == free["text"][: free["text"].index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    kept = (await _post(http, "/v1/completions", **body, stop=stop, include_stop_str_in_output=True))["choices"][0]
    assert kept["text"] == choice["text"] + stop
    token = free["token_ids"][3]
    choice = (await _post(http, "/v1/completions", **body, stop_token_ids=[token]))["choices"][0]
    assert choice["token_ids"] == free["token_ids"][: free["token_ids"].index(token) + 1]
    assert choice["stop_reason"] == token


async def test_chat_renders_the_template_and_returns_its_ids(http: Http) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = await _post(
        http,
        "/v1/chat/completions",
        messages=messages,
        tools=[TERMINAL],
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
    )
    rendered = make_tokenizer().apply_chat_template(
        [{"role": "user", "content": "hi"}], tools=[TERMINAL], add_generation_prompt=True, return_dict=False
    )
    assert answer["prompt_token_ids"] == rendered
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert all(len(step["top_logprobs"]) == 2 for step in choice["logprobs"]["content"])


async def test_every_choice_says_which_weights_sampled_it(http: Http) -> None:
    await _post(http, "/update_weight_version", new_version="step-7")
    answer = await _post(http, "/v1/completions", prompt=[5], max_tokens=3, ignore_eos=True)
    assert answer["choices"][0]["weight_versions"] == [{"version": "step-7", "start": 0, "end": 3}]
    assert await _get(http, "/weight_info") == {"weight_version": "step-7", "logprobs_mode": "raw_logprobs"}


async def test_models_are_listed_with_their_length_and_other_names_are_not_found(http: Http) -> None:
    models = await _get(http, "/v1/models")
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("policy", CONTEXT), ("alias", CONTEXT)]
    assert {card["root"] for card in models["data"]} == {"/where/it/was/loaded/from"}
    assert (await _post(http, "/v1/completions", model="alias", prompt=[5], max_tokens=1))["model"] == "alias"
    error = (await _post(http, "/v1/completions", 404, model="other", prompt=[5]))["error"]
    assert error["type"] == "NotFoundError"
    assert "policy, alias" in error["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [5, 999]}, "999 is out of vocabulary"),
        ({"prompt": [5] * 600}, "maximum context length is 512"),
        ({"prompt": [5] * 500, "max_tokens": 20}, "total of 520"),
        ({"prompt": [-1]}, "a prompt is a text, a list of token ids"),
        ({"prompt": [5], "temperature": -1}, "temperature"),
        ({"prompt": [5], "stream": True}, "stream=True is not supported"),
        ({"prompt": [5], "presence_penalty": 0.5}, "presence_penalty=0.5 is not supported"),
        ({"max_tokens": 3}, "prompt: Field required"),
        ({"prompt": {"a": 1}}, "a prompt is a text"),
        ({"prompt": [5], "n": 0}, "n:"),
        ({"prompt": [5], "max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
async def test_bad_request_is_refused_in_openai_shape(http: Http, body: dict[str, Any], says: str) -> None:
    error = (await _post(http, "/v1/completions", 400, **body))["error"]
    assert says in error["message"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)


async def test_body_that_is_not_json_is_refused(http: Http) -> None:
    async with http.post("/v1/completions", data=b"{") as answer:
        assert answer.status == 400
        assert "not JSON" in (await answer.json())["error"]["message"]


async def test_client_that_goes_away_takes_its_sequences_with_it(
    http: Http, served: tuple[Engine, str], caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = served
    body = {"prompt": [5], "max_tokens": 500, "ignore_eos": True, "n": 4}
    request = asyncio.ensure_future(http.post("/v1/completions", json=body))
    await until(lambda: engine.load()[0] == 4)
    request.cancel()
    await until(lambda: engine.load() == (0, 0))
    await _post(http, "/v1/completions", prompt=[5], max_tokens=1)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_full_line_answers_busy(http: Http, served: tuple[Engine, str]) -> None:
    engine, _ = served
    await _post(http, "/pause", 200)
    async with asyncio.TaskGroup() as group:
        held = group.create_task(_post(http, "/v1/completions", prompt=[5], max_tokens=1, n=100))
        await until(lambda: engine.load()[1] == 100)
        error = (await _post(http, "/v1/completions", 503, prompt=[5]))["error"]
        assert "try again later" in error["message"]
        await _post(http, "/resume")
        assert len((await held)["choices"]) == 100


async def test_pause_abort_ends_what_runs_and_holds_what_comes(http: Http, served: tuple[Engine, str]) -> None:
    engine, _ = served
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_post(http, "/v1/completions", prompt=[5], max_tokens=500, ignore_eos=True))
        await until(lambda: engine.load()[0] == 1)
        await _post(http, "/pause")
        assert (await running)["choices"][0]["finish_reason"] == "abort"
        assert await _get(http, "/is_paused") == {"is_paused": True}
        later = group.create_task(_post(http, "/v1/completions", prompt=[5], max_tokens=2))
        await until(lambda: engine.load()[1] == 1)
        await _post(http, "/resume")
        assert (await later)["choices"][0]["finish_reason"] in ("length", "stop")


async def test_pause_wait_lets_what_runs_finish(http: Http, served: tuple[Engine, str]) -> None:
    engine, _ = served
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_post(http, "/v1/completions", prompt=[5], max_tokens=100, ignore_eos=True))
        await until(lambda: engine.load()[0] == 1)
        async with http.post("/pause", params={"mode": "wait"}) as answer:
            assert answer.status == 200
        assert engine.load() == (0, 0)
        assert (await running)["usage"]["completion_tokens"] == 100


async def test_pause_keep_freezes_and_new_weights_apply_after_it(
    http: Http, served: tuple[Engine, str], tmp_path: Path
) -> None:
    engine, _ = served
    folder = save_policy(tmp_path / "new", seed=1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_post(http, "/v1/completions", prompt=[5], max_tokens=300, ignore_eos=True))
        await until(lambda: engine.load()[0] == 1)
        async with http.post("/pause", params={"mode": "keep"}) as answer:
            assert answer.status == 200
        assert not running.done()
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await _post(http, "/collective_rpc", **rpc)
        await _post(http, "/reset_prefix_cache")
        await _post(http, "/update_weight_version", new_version="1")
        await _post(http, "/resume")
        spans = (await running)["choices"][0]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "1"]
    assert spans[-1]["end"] == 300
    torch.testing.assert_close(engine.model.state_dict(), make_model(seed=1).state_dict())


async def test_weights_of_no_model_are_refused_and_change_nothing(http: Http, tmp_path: Path) -> None:
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert "holds no saved model" in (await _post(http, "/collective_rpc", 400, **call))["error"]["message"]
    make_model(vocab_size=300).save_pretrained(tmp_path)
    assert "shape" in (await _post(http, "/collective_rpc", 400, **call))["error"]["message"]
    assert "method" in (await _post(http, "/collective_rpc", 400, method="shutdown"))["error"]["message"]


async def test_prompt_logprobs_say_what_the_model_thinks_of_a_prompt(http: Http) -> None:
    answer = await _post(http, "/v1/completions", prompt=[5, 6, 7], max_tokens=1, prompt_logprobs=2, temperature=0)
    first, second, third = answer["choices"][0]["prompt_logprobs"]
    with torch.inference_mode():
        expected = torch.log_softmax(make_model()(torch.tensor([[5, 6, 7]])).logits[0], -1)
    assert first is None
    assert second["6"]["logprob"] == pytest.approx(float(expected[0, 6]), abs=2e-5)
    assert {str(int(token)) for token in expected[1].topk(2).indices} <= third.keys()


async def test_health_follows_the_engine(http: Http, served: tuple[Engine, str]) -> None:
    async with http.get("/health") as answer:
        assert answer.status == 200
    served[0].close()
    async with http.get("/health") as answer:
        assert answer.status == 503


async def test_sixty_four_requests_at_once_run_in_one_batch(http: Http) -> None:
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_post(http, "/v1/completions", prompt=[5, 6, i + 3], max_tokens=32, ignore_eos=True))
            for i in range(64)
        ]
    assert all(task.result()["usage"]["completion_tokens"] == 32 for task in tasks)
    assert time.perf_counter() - started < 20
