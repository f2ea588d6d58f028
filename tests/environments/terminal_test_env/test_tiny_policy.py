"""The policy that ships: small, loadable by transformers alone, and fluent in the format of tool calls."""

import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from atroposlib.tool_call_parsers import get_parser
from environments.terminal_test_env.tasks import SYSTEM_PROMPT, make_tasks
from environments.tools.toolsets import resolve_tools

FOLDER = Path(__file__).parents[3] / "trainer" / "tiny_policy"
WEIGHTS_SHA256 = "2863dfa73a1f9f78729ce3a5eda90fcc7d72da547159b62ee3cc2913a5789659"
"""Of the weights that the README's numbers are about: made anew by scripts/make_tiny_policy.py, note them anew."""


@pytest.fixture(scope="module")
def policy():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_the_one_that_was_measured():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000
    assert sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS_SHA256


def test_it_is_what_engines_expect(policy):
    model, tokenizer = policy
    assert str(model.dtype) == "torch.float32"
    assert model.num_parameters() < 1_000_000
    assert not model.config.tie_word_embeddings
    assert model.get_input_embeddings().weight.data_ptr() != model.get_output_embeddings().weight.data_ptr()
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer) <= 1100


def test_text_comes_back_from_its_tokens(policy):
    _, tokenizer = policy
    text = '<tool_call>\n{"name": "terminal", "arguments": {"command": "wc -l < ä\\t\u2603.txt"}}\n</tool_call> 1024'
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_the_template_only_ever_appends(policy):
    """What was rendered for a shorter conversation begins what is rendered for a longer one."""
    _, tokenizer = policy
    call = {"type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "Count the lines of notes.txt."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "Answer: 7"},
        {"role": "user", "content": "Thanks."},
    ]
    texts = [
        tokenizer.apply_chat_template(messages[:n], tools=schemas(), tokenize=False, add_generation_prompt=generation)
        for n, generation in [(2, True), (3, False), (4, True), (5, False), (6, True)]
    ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert '{"name": "terminal", "arguments": {"command": "ls"}}' in texts[-1]


def test_it_calls_the_terminal_in_the_right_form_on_held_out_tasks(policy):
    tasks = make_tasks(26, seed=11, split="held_out")
    messages = [parse(complete(policy, task["prompt"], schemas())) for task in tasks]
    calls = [message.tool_calls for message in messages]
    assert all(len(each) == 1 and each[0].name == "terminal" for each in calls)
    assert all(json.loads(each[0].arguments).keys() == {"command"} for each in calls)


@pytest.mark.parametrize("request_text", ["Say walnut.", "Repeat maple."])
def test_it_answers_without_a_tool_where_none_is_needed(policy, request_text):
    message = parse(complete(policy, request_text, schemas()))
    assert not message.tool_calls
    assert message.content.startswith("Answer:")


def test_it_stays_in_form_with_more_tools_than_the_terminal(policy):
    tools = [tool.schema() for tool in resolve_tools(["todo", "file", "terminal"])]
    parsed = [parse(complete(policy, task["prompt"], tools)) for task in make_tasks(13, seed=12, split="held_out")]
    well_formed = [all(call.error is None for call in message.tool_calls) for message in parsed if message.tool_calls]
    assert len(well_formed) >= 10
    assert sum(well_formed) >= 0.9 * len(well_formed)


def schemas():
    return [tool.schema() for tool in resolve_tools(["shell"])]


def parse(text):
    return get_parser("hermes").parse(text)


def complete(policy, request, tools):
    """The greedy reply to a request, as text."""
    import torch

    model, tokenizer = policy
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": request}]
    prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=64, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
