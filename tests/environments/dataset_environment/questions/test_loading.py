import pytest

from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions import load_questions
from tests.environments.dataset_environment.sums import sums, write_gsm8k, write_jsonl


@pytest.fixture
def gsm8k(here):
    return write_gsm8k(here / "gsm8k", train=40, test=8)


def load(needs_answer=True, **settings):
    shape = {"dataset_name": "gsm8k", "dataset_config": "main", "prompt_field": "question", "answer_field": "answer"}
    return load_questions(DatasetEnvConfig(**shape | settings), needs_answer)


def prompts(questions):
    return [question.prompt for question in questions]


def test_a_tenth_of_the_rows_is_held_out_and_never_trained_on(gsm8k):
    questions = load()
    assert (len(questions.train), len(questions.held_out)) == (36, 4)
    assert set(prompts(questions.train)).isdisjoint(prompts(questions.held_out))
    assert prompts(load(seed=0).held_out) == prompts(questions.held_out)
    assert prompts(load(seed=1).held_out) != prompts(questions.held_out)


@pytest.mark.parametrize(
    ("settings", "held_out"), [({"eval_size": 2}, 2), ({"eval_fraction": 0.0}, 0), ({"eval_fraction": 1.0}, 39)]
)
def test_how_much_is_held_out_can_be_chosen_but_training_keeps_some(gsm8k, settings, held_out):
    questions = load(**settings)
    assert (len(questions.train), len(questions.held_out)) == (40 - held_out, held_out)


def test_a_split_of_its_own_is_evaluated(gsm8k):
    questions = load(eval_split="test")
    assert (len(questions.train), len(questions.held_out)) == (40, 8)
    assert questions.held_out[0].id == "gsm8k/test/0"


def test_what_both_splits_ask_is_not_trained_on(gsm8k):
    questions = load(eval_split="train[30:]")
    assert (len(questions.train), len(questions.held_out)) == (30, 10)


def test_equal_questions_stay_on_one_side(here):
    write_jsonl(here / "d.jsonl", sums(10) * 3)
    questions = load(dataset_name=None, dataset_config=None, dataset_path="d.jsonl", eval_fraction=0.5)
    assert set(prompts(questions.train)).isdisjoint(prompts(questions.held_out))
    assert (len(questions.train), len(questions.held_out)) == (15, 5), "each held-out question is asked once"


def test_a_split_that_is_evaluated_whole_leaves_nothing_to_train_on(gsm8k):
    questions = load(eval_split="train")
    assert (len(questions.train), len(questions.held_out)) == (0, 40)


def test_a_question_knows_what_it_is_judged_by(here):
    rows = [{"task_id": "t7", "q": {"text": "1+1?"}, "meta": {"answers": ["2", "two"], "gold": 2}}]
    write_jsonl(here / "nested.jsonl", rows)
    (question,) = load(
        dataset_path="nested.jsonl",
        prompt_field="q.text",
        answer_field="meta.answers",
        ground_truth_field="meta.gold",
        prefill="<think>",
    ).train
    assert (question.id, question.answer, question.ground_truth) == ("t7", ["2", "two"], 2)
    assert question.row == rows[0]
    assert question.messages() == [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<think>"}]


def test_templates_make_question_and_answer(here):
    write_jsonl(here / "choices.jsonl", [{"ctx": "He", "endings": ["runs", "eats"], "right": 1}])
    (question,) = load(
        dataset_path="choices.jsonl",
        prompt_template="{{ ctx }}: {% for e in endings %}{{ 'AB'[loop.index0] }} {{ e }} {% endfor %}",
        answer_template="{{ 'AB'[right] }}",
        answer_field=None,
    ).train
    assert (question.prompt, question.answer) == ("He: A runs B eats ", "B")


def test_solved_rows_are_shown_and_not_trained_on(gsm8k):
    questions = load(few_shot=2, few_shot_examples=[{"prompt": "1+1?", "answer": "2"}], system_prompt="Add.")
    assert len(questions.train) == 34
    shown = questions.train[0].conversation[1:-1]
    assert [message["role"] for message in shown] == ["user", "assistant"] * 3
    assert shown[:2] == ({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
    assert "####" in shown[3]["content"]
    asked = {*prompts(questions.train), *prompts(questions.held_out)}
    assert asked.isdisjoint(message["content"] for message in shown)
    assert questions.held_out[0].conversation[1:-1] == shown


def test_rows_without_question_or_answer_are_left_out(here, caplog):
    rows = sums(5)
    rows[1]["answer"], rows[3]["question"] = None, ""
    write_jsonl(here / "holes.jsonl", rows)
    assert len(load(dataset_path="holes.jsonl", eval_fraction=0.0).train) == 3
    assert "2 rows of holes.jsonl (main), split train lack question or answer: left out" in caplog.text
    assert len(load(needs_answer=False, dataset_path="holes.jsonl", eval_fraction=0.0).train) == 4


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"prompt_field": "questoin"}, r"prompt_field: .* \(is question meant\?\). Its columns are: question, answer"),
        ({"answer_field": "solution"}, "answer_field: .* Its columns are: question, answer"),
        ({"answer_field": None}, "answer_field is not set, and a reward function needs the right answers"),
        ({"prompt_template": "{{ q }}"}, "prompt_template: 'q' is undefined"),
        ({"split": "train[:0]"}, r"split train\[:0\] has no rows"),
        ({"dataset_name": None}, "--env.dataset_name, or --env.dataset_path"),
        ({"few_shot": 40}, "40 solved rows are to be shown"),
        ({"few_shot": 1, "answer_field": None, "needs_answer": False}, "few_shot shows solved rows"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused_at_the_start(gsm8k, settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load(**settings)


def test_an_answer_field_that_no_reward_needs_may_be_absent(gsm8k):
    assert load(needs_answer=False, answer_field="solution").train[0].answer is None
