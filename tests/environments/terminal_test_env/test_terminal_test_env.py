"""The environment's grades, found in real boxes: what is right is worth 1, what merely looks right is not."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.errors import RolloutInvalid
from environments.terminal_test_env.random_policy import reply
from environments.terminal_test_env.tasks import INTENTS, make_tasks
from environments.terminal_test_env.terminal_test_env import TerminalTestEnv, final_answer, last_output

TASKS = {task["intent"]: task for task in make_tasks(len(INTENTS), seed=5, split="held_out")}
QUESTIONS = [task for task in TASKS.values() if task["kind"] == "question"]
EDITS = [task for task in TASKS.values() if task["kind"] == "edit"]


def name_of(task):
    return task["intent"]


def call(command):
    return {"tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}


def file_of(task):
    return next(iter(task["files"]))


def right_answer(task, folder):
    """What the reference prints here, on this machine."""
    for name, text in task["files"].items():
        (folder / name).write_text(text)
    ran = subprocess.run(["sh", "-c", task["solution"]], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.strip() or "done"


async def grade(task, backend, *replies):
    """The reward of an agent that says ``replies``."""
    return (await play(task, backend, *replies))["scores"]


async def play(task, backend, *replies):
    server = ScriptedServer(replies)
    config, _ = TerminalTestEnv.config_init()
    config.terminal_backend, config.use_wandb, config.max_token_length = backend, False, 2000
    env = TerminalTestEnv(config, [server], testing=True)
    env.tokenizer = server.tokenizer
    await env.setup()
    member, _ = await env.collect_trajectory(task)
    return member


@pytest.mark.parametrize("task", TASKS.values(), ids=name_of)
async def test_the_right_command_and_answer_are_worth_everything(task, backend, tmp_path):
    answer = right_answer(task, tmp_path)
    assert await grade(task, backend, call(task["solution"]), f"Answer: {answer}") == 1.0


@pytest.mark.parametrize("task", QUESTIONS, ids=name_of)
async def test_the_right_output_with_a_wrong_answer_is_worth_half(task):
    assert await grade(task, "local", call(task["solution"]), "Answer: surely not") == 0.5


@pytest.mark.parametrize("task", TASKS.values(), ids=name_of)
async def test_a_command_that_does_nothing_is_worth_its_form(task):
    assert await grade(task, "local", call("true"), "Answer: surely not") == 0.1


@pytest.mark.parametrize("task", QUESTIONS, ids=name_of)
async def test_a_right_answer_without_any_command_is_worth_nothing(task, tmp_path):
    assert await grade(task, "local", f"Answer: {right_answer(task, tmp_path)}") == 0.0


@pytest.mark.parametrize("task", EDITS, ids=name_of)
async def test_an_edit_that_is_not_answered_for_is_worth_half(task):
    assert await grade(task, "local", call(task["solution"]), "There you are.") == 0.5


@pytest.mark.parametrize("task", EDITS, ids=name_of)
async def test_an_edit_that_touches_more_than_was_asked_is_not_right(task):
    command = f"{task['solution']}; touch extra"
    assert await grade(task, "local", call(command), "Answer: done") == 0.1


async def test_files_that_the_agent_changed_do_not_change_what_is_right():
    task = TASKS["lines"]
    file = task["solution"].split()[-1]
    assert await grade(task, "local", call(f"echo > {file}; wc -l < {file}"), "Answer: 1") == 0.1


async def test_the_output_that_counts_is_the_last_one():
    task = TASKS["lines"]
    assert await grade(task, "local", call(task["solution"]), call("ls"), "Answer: surely not") == 0.1


async def test_a_call_that_was_refused_is_no_command():
    task = TASKS["lines"]
    assert await grade(task, "local", {"tool_calls": [{"name": "terminal", "arguments": {}}]}, "Answer: 3") == 0.0


async def test_the_agent_sees_the_files_and_nothing_of_the_check(backend):
    task = TASKS["find"]
    member = await play(task, backend, call("ls -A; ls -A /tmp"), "Answer: none")
    seen = next(message["content"] for message in member["messages"] if message["role"] == "tool")
    assert all(name in seen for name in task["files"])
    assert task["solution"] not in str(member["messages"])


async def test_nothing_of_the_check_is_left_on_the_machine():
    broken = TASKS["lines"] | {"solution": "echo no idea; exit 3"}
    before = set(Path("/tmp").iterdir())
    assert await grade(TASKS["lines"], "local", "Answer: 3") == 0.0
    with pytest.raises(RolloutInvalid, match="failed in the box, with exit code 3: no idea"):
        await grade(broken, "local", "Answer: 3")
    left = {path for path in set(Path("/tmp").iterdir()) - before if (path / file_of(broken)).exists()}
    assert left == set()


async def test_constant_answers_and_random_commands_hardly_ever_succeed():
    """Over the held-out tasks: rewards of policies that cannot have understood anything."""
    policies = {
        "nothing": (0.0, lambda request: "Answer: done"),
        "list, then a number": (0.05, lambda request: "Answer: 7" if is_result(request) else call("ls")),
        "everything at once": (0.0, lambda request: "Answer: done" if is_result(request) else call("cat *; wc *")),
        "random commands": (0.15, lambda request: as_script(reply(request.messages, seed=0))),
    }
    for name, (most, policy) in policies.items():
        rewards = await evaluate(policy)
        assert sum(reward == 1.0 for reward in rewards) <= most * len(rewards), name


async def evaluate(policy):
    server = ScriptedServer(policy, token_exact=False)
    config, _ = TerminalTestEnv.config_init()
    config.terminal_backend, config.use_wandb, config.eval_size = "local", False, 65
    env = TerminalTestEnv(config, [server], testing=True)
    await env.setup()
    kept = {}

    async def keep(metrics, samples=None, **_):
        kept["rewards"] = [sample["reward"] for sample in samples]

    env.evaluate_log = keep
    await env.evaluate()
    return kept["rewards"]


def is_result(request):
    return request.messages[-1]["role"] == "tool"


def as_script(message):
    """A message of the random policy in the words of the scripted engine."""
    if not message.get("tool_calls"):
        return message["content"]
    return {"tool_calls": [each["function"] for each in message["tool_calls"]]}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 7", "7"),
        ("It has seven.\nAnswer: **7**.", "7"),
        ("Answer: 3\nNo, wait. Answer: `notes.txt`", "notes.txt"),
        ("Answer:\nred maple", "red maple"),
        ("It has seven.", None),
    ],
)
def test_the_answer_is_what_follows_the_last_mark(text, answer):
    assert final_answer(SimpleNamespace(final_response=text, finished_naturally=True)) == answer


def test_an_agent_that_was_stopped_has_not_answered():
    assert final_answer(SimpleNamespace(final_response="Answer: 7", finished_naturally=False)) is None


@pytest.mark.parametrize("content", ["no json", "[1]", '{"error": "no"}', "{}"])
def test_what_is_no_output_of_a_command_is_none(content):
    assert last_output([{"role": "tool", "content": content}]) is None
    assert last_output([]) is None
