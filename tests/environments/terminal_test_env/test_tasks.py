"""The generated tasks: repeatable, varied, and with a held-out split that training never sees."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.terminal_test_env.repertoire import REPERTOIRE, random_command
from environments.terminal_test_env.tasks import INTENTS, held_out, make_tasks

SPLITS = ("train", "held_out")
seeds = st.integers(min_value=0, max_value=10**9)


@given(seed=seeds, count=st.integers(min_value=0, max_value=40), split=st.sampled_from(SPLITS))
@settings(max_examples=30, deadline=None)
def test_same_arguments_make_the_same_tasks(seed, count, split):
    tasks = make_tasks(count, seed=seed, split=split)
    assert tasks == make_tasks(count, seed=seed, split=split)
    assert len(tasks) == len({task["id"] for task in tasks}) == count


@given(one=seeds, other=seeds)
@settings(max_examples=15, deadline=None)
def test_no_request_that_is_held_out_is_ever_trained_on(one, other):
    trained = {task["prompt"] for task in make_tasks(150, seed=one, split="train")}
    assert trained.isdisjoint(task["prompt"] for task in make_tasks(150, seed=other, split="held_out"))


@given(seed=seeds, split=st.sampled_from(SPLITS))
@settings(max_examples=20, deadline=None)
def test_every_task_has_two_to_four_small_files_and_hides_its_solution(seed, split):
    for task in make_tasks(26, seed=seed, split=split):
        assert 2 <= len(task["files"]) <= 4
        assert all(0 < len(text) < 1000 and text.endswith("\n") for text in task["files"].values())
        assert task["solution"] not in task["prompt"]


@pytest.mark.parametrize("split", SPLITS)
def test_both_splits_hold_every_intent_equally_often(split):
    intents = [task["intent"] for task in make_tasks(10 * len(INTENTS), seed=1, split=split)]
    assert {intents.count(intent.name) for intent in INTENTS} == {10}


def test_the_held_out_tasks_are_many_and_differ():
    tasks = make_tasks(200, seed=0, split="held_out")
    assert len({(task["prompt"], str(task["files"])) for task in tasks}) == 200
    assert len({task["prompt"] for task in tasks}) > 120


def test_about_a_quarter_of_the_combinations_is_held_out():
    names = [f"file{n}.txt" for n in range(400)]
    share = sum(held_out(intent, 0, name) for intent in INTENTS for name in names) / (len(INTENTS) * len(names))
    assert 0.2 < share < 0.3


@pytest.mark.parametrize("template", REPERTOIRE)
def test_a_random_command_speaks_of_what_the_request_names(template):
    request = "Replace 'apple' by 'maple' in notes.txt."
    command = random_command(random.Random(0), request, [template])
    filled = template.format(file="notes.txt", new_file="notes.txt", word="apple", new_word="maple", ext="txt")
    assert command == filled
