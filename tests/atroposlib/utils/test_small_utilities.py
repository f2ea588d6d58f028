"""The small functions of old paths: selection, metrics, flags, HTTP answers, tables, diverse samples."""

from __future__ import annotations

import logging
import random
import sys
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Response
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError
from pydantic import BaseModel, Field

from atroposlib.errors import InferenceError
from atroposlib.utils.best_of_n_selection import select_best_index
from atroposlib.utils.cli import (
    adjust_model_defaults,
    extract_namespace,
    get_double_dash_flags,
    get_prefixed_pydantic_model,
    merge_dicts,
)
from atroposlib.utils.display import display_metrics_table
from atroposlib.utils.force_diverse_samples import generate_with_diverse_first_tokens
from atroposlib.utils.io import parse_http_response
from atroposlib.utils.metrics import get_std_min_max_avg
from atroposlib.utils.tokenizers.qwen_fixed_tokenizer import QwenFixedTokenizer
from tests.atroposlib.api.serving import serving
from tests.atroposlib.utils.chatml import chatml_tokenizer

# --- selection ---


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), st.booleans(), st.booleans())
def test_nothing_beats_the_best(scores, higher, lower):
    primary, secondary = [list(each) for each in zip(*scores, strict=True)]
    best = select_best_index(primary, secondary, higher, lower)
    rank = [(p if higher else -p, -s if lower else s) for p, s in scores]
    assert rank[best] == max(rank)
    assert best == rank.index(max(rank))


@pytest.mark.parametrize("scores", [([], []), ([1], [])])
def test_selection_needs_as_many_scores(scores):
    with pytest.raises(ValueError, match="as many"):
        select_best_index(*scores)


def test_summaries_of_a_list():
    assert get_std_min_max_avg("x", [1, 3], {"y": 0}) == {"y": 0, "x_mean": 2, "x_std": 1, "x_max": 3, "x_min": 1}
    assert get_std_min_max_avg("x", [], {}) == {}


def test_a_table_shows_what_is_no_number_too(capsys):
    display_metrics_table("task", {"eval/accuracy": 0.5, "note": None}, 0.0, 1.5)
    assert "0.5" in capsys.readouterr().out


# --- command lines ---


class Settings(BaseModel):
    size: int = Field(4, ge=1, description="how large")
    names: list[str] = Field(default_factory=list)


def test_flags_are_read_with_negative_numbers(monkeypatch):
    words = ["--a", "-1", "--b=x=y", "--c", "--d", "None", "-o", "skipped", "--a", "-2.5", "--", "--e"]
    expected = {"a": "-2.5", "b": "x=y", "c": True, "d": None, "e": True}
    assert get_double_dash_flags(words) == expected
    monkeypatch.setattr(sys, "argv", ["program", *words])
    assert get_double_dash_flags() == expected


def test_models_get_a_prefix_and_lose_it_again():
    prefixed = get_prefixed_pydantic_model(Settings, "env.")
    assert prefixed.model_fields["env.size"].description == "how large"
    assert extract_namespace(prefixed(**{"env.size": 8}), "env.") == {"size": 8, "names": []}
    assert extract_namespace({"env.size": 1, "other": 2}, "env.") == {"size": 1}
    with pytest.raises(TypeError):
        extract_namespace(3, "env.")


@pytest.mark.parametrize("defaults", [{"size": 9}, Settings(size=9)])
def test_defaults_are_replaced_and_nothing_else(defaults):
    adjusted = adjust_model_defaults(Settings, defaults)
    assert adjusted.__name__ == "SettingsWithDefaults"
    assert adjusted().size == 9
    assert adjusted.model_fields["size"].description == "how large"
    with pytest.raises(ValueError, match="greater than or equal"):
        adjusted(size=0)
    assert Settings().size == 4


def test_dicts_are_merged_deeply_and_stay_as_they_were():
    first = {"a": {"x": 1, "y": 1}, "b": 1}
    assert merge_dicts(first, {"a": {"y": 2}}, {"b": {"z": 3}}) == {"a": {"x": 1, "y": 2}, "b": {"z": 3}}
    assert first == {"a": {"x": 1, "y": 1}, "b": 1}
    assert merge_dicts() == {}


# --- HTTP ---


async def test_json_is_read_and_errors_are_logged_and_rise(caplog):
    app = FastAPI()

    @app.get("/good")
    def good() -> dict[str, int]:
        return {"a": 1}

    @app.get("/bad")
    def bad() -> Response:
        return Response("out of order", 500)

    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/good") as answer:
            assert await parse_http_response(answer) == {"a": 1}
        async with http.get("/bad") as answer:
            with caplog.at_level(logging.ERROR), pytest.raises(aiohttp.ClientResponseError):
                await parse_http_response(answer)
    assert "out of order" in caplog.text


# --- diverse samples ---


class Engine:
    """Names three first tokens, and completes what it is given with an exclamation mark."""

    def __init__(self, tells_logprobs: bool = True) -> None:
        self.tells_logprobs = tells_logprobs
        self.openings: list[str] = []

    async def chat_completion(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        if "top_logprobs" in options:
            top = [SimpleNamespace(token=token, logprob=-float(i)) for i, token in enumerate("abc")]
            content = [SimpleNamespace(top_logprobs=top)] if self.tells_logprobs else None
            return SimpleNamespace(choices=[SimpleNamespace(logprobs=SimpleNamespace(content=content))])
        self.openings.append(messages[-1]["content"])
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="!"))])


@pytest.mark.parametrize(("n", "count"), [(2, 2), (8, 3)])
async def test_samples_differ_from_the_first_token_on(n, count):
    env = SimpleNamespace(server=Engine())
    texts = await generate_with_diverse_first_tokens(env, [], prefill="<think>", n=n, rng=random.Random(0))
    assert len(set(texts)) == len(texts) == count
    assert all(text[1:] == "!" for text in texts)
    assert sorted(env.server.openings) == sorted(f"<think>{text[0]}" for text in texts)


async def test_an_engine_without_alternatives_is_an_error():
    with pytest.raises(InferenceError, match="top_logprobs"):
        await generate_with_diverse_first_tokens(SimpleNamespace(server=Engine(tells_logprobs=False)), [])


# --- a template that builds lists ---

_APPENDS = """\
{%- set turns = [] -%}
{%- for message in messages -%}{%- set _ = turns.append(message.role ~ ': ' ~ message.content) -%}{%- endfor -%}
{{- turns | join('\n') -}}
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if add_generation_prompt %}assistant:{% endif -%}"""


def test_a_template_that_appends_is_rendered(tmp_path):
    chatml_tokenizer(_APPENDS).save_pretrained(tmp_path)
    tokenizer = QwenFixedTokenizer(str(tmp_path))
    chat = [{"role": "user", "content": "<ä>"}]
    with pytest.raises(SecurityError):
        tokenizer.tokenizer.apply_chat_template(chat)
    text = tokenizer.apply_chat_template(chat, tools=[{"name": "é"}], tokenize=False, add_generation_prompt=True)
    assert text == 'user: <ä>[{"name": "é"}]assistant:'
    ids = tokenizer.apply_chat_template(chat)
    assert tokenizer.decode(ids) == "user: <ä>"
    assert tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"] == ids
    assert tokenizer.eos_token == "<|im_end|>"
