import asyncio
import json
import re

import pytest

from atroposlib.envs.argv import split_flags
from atroposlib.envs.cli import defaults_of
from atroposlib.envs.reward_fns import RewardFunction, registry
from atroposlib.envs.settings import settings_from
from atroposlib.errors import ConfigError, EngineUnavailable
from environments.dataset_environment.dataset_env import ENGINE_URL, DatasetEnv
from tests.environments.dataset_environment.scripted import add_up, make_env, question_in
from tests.environments.dataset_environment.sums import write_gsm8k, write_jsonl

SEED_FLAGS = """--group_size 4 --max_num_workers 2 --rollout_server_url http://127.0.0.1:8000 --tokenizer_name a/b
    --use_wandb --wandb_name w --max_token_length 512 --ensure_scores_are_not_same --dataset_name d/e
    --split train[:100] --prompt_field prompt --answer_field answer --reward_functions length format
    --max_tokens 128 --temperature 0.7 --model_name m --base_url http://127.0.0.1:9001 --slurm --testing"""

DATA_FLAGS = ["--dataset_name", "gsm8k", "--dataset_config", "main", "--prompt_field", "question"]
DATA_FLAGS += ["--answer_field", "answer", "--reward_functions", "accuracy"]


@pytest.fixture(autouse=True)
def gsm8k(here):
    return write_gsm8k(here / "gsm8k", train=30, test=6)


async def ready(script=add_up, **settings):
    env = make_env(script, **settings)
    await env.setup()
    return env


async def test_a_group_is_answered_judged_and_recorded_token_by_token():
    env = await ready(prefill="<think>\n", reward_functions=["accuracy", "format"], group_size=3)
    question = await env.get_next_item()
    group, backlog = await env.collect_trajectories(question)
    assert (group["scores"], backlog) == ([0.5, 0.5, 0.5], [])
    for tokens, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(masks) == len(logprobs)
        trained = bytes(t for t, mask in zip(tokens, masks, strict=True) if mask != -100 and t < 256).decode()
        assert trained.startswith("It is")
    assert group["messages"][0] == [
        {"role": "user", "content": question.prompt},
        {"role": "assistant", "content": "<think>\n" + add_up_text(question)},
    ]
    assert env.engine.requests[0].arguments["temperature"] == 1.0
    assert "tools" not in env.engine.requests[0].arguments


async def test_a_subclass_may_put_the_question_in_other_words():
    class Politely(DatasetEnv):
        def format_prompt(self, item):
            return f"{item.prompt} Please." if self.config.seed else [{"role": "user", "content": item.prompt}]

    env = make_env(["It is"] * 2, cls=Politely, seed=1, prefill="So", system_prompt="Add up.")
    await env.setup()
    question = await env.get_next_item()
    group, _ = await env.collect_trajectories(question)
    said = [message["content"] for message in group["messages"][0]]
    assert said == ["Add up.", f"{question.prompt} Please.", "SoIt is"]
    env.config.seed = 0
    with pytest.raises(ConfigError, match=r"Politely.format_prompt\(\) returned a list of messages"):
        await env.collect_trajectories(question)


def add_up_text(question):
    return f"It is \\boxed{{{question.answer.rpartition(' ')[2]}}}"


async def test_questions_that_run_at_once_are_each_judged_by_their_own_answer():
    env = await ready()
    questions = [await env.get_next_item() for _ in range(12)]
    groups = await asyncio.gather(*map(env.collect_trajectories, questions))
    assert [group["scores"] for group, _ in groups] == [[1.0, 1.0]] * 12


async def test_sampling_is_as_the_settings_say():
    env = await ready(temperature=0.7, top_p=0.95, max_tokens=128, max_token_length=512, extra_body={"top_k": 5})
    await env.collect_trajectories(await env.get_next_item())
    arguments = env.engine.requests[0].arguments
    assert (arguments["temperature"], arguments["max_tokens"]) == (0.7, 128)
    assert arguments["extra_body"] == {"top_p": 0.95, "top_k": 5}


async def test_the_members_of_a_group_are_judged_together():
    replies = iter([r"\boxed{1}", r"\boxed{1} and much more is to be said about it, at great length"] * 3)
    compared = {"type": "combined", "params": {"rewards": ["length"], "normalization": "minmax"}}
    env = await ready(lambda _: next(replies), reward_functions=[compared], max_tokens=64)
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert sorted(group["scores"]) == [0.0, 1.0]


async def test_without_token_ids_the_groups_say_that_they_cannot_be_trained_on():
    env = await ready(token_exact=False, system_prompt="Add.")
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert group["scores"] == [1.0, 1.0]
    assert [override["trainable"] for override in group["overrides"]] == [False, False]


class Fragile(RewardFunction):
    """Cannot judge an answer that says so."""

    independent = True

    def compute(self, completions, **kwargs):
        if "unjudgeable" in self.get_content(completions[0]):
            raise ValueError("no verdict")
        return [float(len(self.get_content(completions[0])))]


@pytest.fixture
def fragile():
    registry.register(Fragile)


async def test_an_answer_that_a_reward_cannot_judge_is_left_out_and_counted(fragile):
    replies = iter(["a", "unjudgeable", "ccc"])
    env = await ready(lambda _: next(replies), reward_functions=["fragile"], group_size=3)
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert sorted(group["scores"]) == [1.0, 3.0]
    assert env.rollout_failures == {"reward_error": 1}


async def test_a_group_that_no_reward_can_judge_is_no_group_of_zeros(fragile):
    env = await ready(lambda _: "unjudgeable", reward_functions=["fragile"])
    with pytest.raises(Exception, match=r"fragile.*no verdict"):
        await env.collect_trajectories(await env.get_next_item())


async def test_an_engine_that_fails_gives_no_score():
    env = await ready(lambda _: EngineUnavailable("gone"))
    assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
    assert env.rollout_failures["engine_error"] == 6


async def test_every_question_comes_once_in_an_epoch_and_in_the_order_of_the_seed():
    env, again, other = await ready(), await ready(), await ready(seed=1)
    count = len(env.items)
    drawn = [(await env.get_next_item()).id for _ in range(2 * count)]
    assert sorted(drawn[:count]) == sorted(drawn[count:]) == sorted(question.id for question in env.items)
    assert drawn[:count] != drawn[count:]
    assert [(await again.get_next_item()).id for _ in range(count)] == drawn[:count]
    assert [(await other.get_next_item()).id for _ in range(count)] != drawn[:count]


async def test_without_shuffling_the_rows_come_in_their_order():
    env = await ready(shuffle_dataset=False, eval_fraction=0.0)
    assert [(await env.get_next_item()).id for _ in range(31)] == [f"gsm8k/train/{n % 30}" for n in range(31)]


async def test_a_checkpoint_keeps_how_far_the_questions_were_drawn(here):
    env, later = await ready(), await ready()
    for each in (env, later):
        each.checkpoint_dir = str(here)
    drawn = [(await env.get_next_item()).id for _ in range(5)]
    env.save_checkpoint(7)
    later.curr_step = 7
    later.load_checkpoint()
    assert (await later.get_next_item()).id == (await env.get_next_item()).id
    assert drawn


async def test_evaluate_tells_every_item_and_the_mean_of_every_reward(here):
    env = await ready(
        lambda request: add_up(request) if question_in(request).endswith("1?") else "I do not know",
        reward_functions=["accuracy", {"type": "length", "weight": 1.0}],
        eval_split="test",
        data_dir_to_save_evals=str(here / "results"),
        max_tokens=64,
    )
    await env.evaluate()
    metrics = json.loads((here / "results" / "metrics.json").read_text())["results"]["all"]
    samples = [json.loads(line) for line in (here / "results" / "samples.jsonl").read_text().splitlines()]
    right = [sample for sample in samples if sample["rewards"]["accuracy"]["value"] == 1.0]
    assert [sample["item"] for sample in samples] == [f"gsm8k/test/{n}" for n in range(6)]
    assert all(sample["prompt"].endswith("1?") for sample in right)
    assert metrics["eval/reward/accuracy"] == len(right) / 6
    assert metrics["eval/reward/length"] == 1.0
    assert metrics["eval/mean_reward"] == pytest.approx((len(right) / 6 + 1) / 2)
    assert all("####" in sample["answer"] and sample["rewards"]["accuracy"]["why"] for sample in samples)
    assert env.engine.requests[0].arguments["temperature"] == 0.0


async def test_a_reward_of_ones_own_is_taken_from_any_file(here):
    (here / "my_rewards.py").write_text(
        "from atroposlib.envs.reward_fns import RewardFunction, registry\n"
        "@registry.register\n"
        "class SaysItReward(RewardFunction):\n"
        "    def __init__(self, word='It', weight=1.0, **kwargs):\n"
        "        super().__init__(weight=weight, **kwargs)\n"
        "        self.word = word\n"
        "    def compute(self, completions, **kwargs):\n"
        "        assert kwargs['item']['question'] == kwargs['prompt']\n"
        "        return [float(self.word in self.get_content(c)) for c in completions]\n"
    )
    chosen = {"type": "says_it", "params": {"word": "boxed"}}
    env = await ready(reward_modules=["my_rewards.py"], reward_functions=[chosen])
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert group["scores"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"reward_functions": []}, "choose reward functions: .*accuracy"),
        ({"reward_functions": ["acuracy"]}, "acuracy"),
        ({"reward_functions": [{"type": "length", "params": {"max_token": 3}}]}, "max_token"),
        ({"reward_modules": ["no_such_module"]}, "reward_modules: no_such_module"),
        ({"enabled_toolsets": ["nothing"]}, "Unknown toolset"),
        ({"few_shot_examples": [{"q": "1"}]}, "an example is"),
    ],
)
def test_settings_that_make_no_environment_are_refused(settings, complaint):
    with pytest.raises((ConfigError, ValueError), match=complaint):
        make_env([], **settings)


def test_a_file_of_rewards_that_cannot_be_imported_is_not_called_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text("import not_installed_here\n")
    with pytest.raises(ConfigError, match=r"reward_modules: my_rewards.py cannot be imported: .*not_installed_here"):
        make_env([], reward_modules=["my_rewards.py"])


@pytest.mark.parametrize("mode", ["serve", "process", "evaluate"])
@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--prompt_field quest", r"prompt_field: .* has no field 'quest' \(is question meant"),
        ("--dataset_path nowhere.jsonl", "dataset_path: there is no file or folder 'nowhere.jsonl'"),
        ("--split tests", "Unknown split"),
        ("--few_shot 100", "few_shot: 100 solved rows"),
    ],
)
def test_what_does_not_fit_the_data_is_told_before_an_engine_is_waited_for(capsys, mode, flag, complaint):
    with pytest.raises(SystemExit) as ended:
        DatasetEnv.cli([mode, *DATA_FLAGS, *flag.split(), "--base_url", "http://127.0.0.1:9", "--use_wandb", "false"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.search(complaint, said), said


def test_a_dry_run_needs_no_engine(here):
    results = here / "results"
    DatasetEnv.cli(
        ["evaluate", *DATA_FLAGS, "--testing", "--use_wandb", "false", "--data_dir_to_save_evals", str(results)]
    )
    assert "scripted reply" in (results / "samples.jsonl").read_text()


@pytest.mark.parametrize("named", [["--base_url", ENGINE_URL], ["--base_url", "http://elsewhere:9001"]])
def test_a_dry_run_asks_the_engine_that_was_named(named):
    flags = split_flags([*DATA_FLAGS, "--testing", *named])
    settings = settings_from(flags, defaults_of(DatasetEnv, "evaluate"))
    env = DatasetEnv.from_settings(settings.env, settings.servers, slurm=False, testing=True, extra={})
    assert [server.config.base_url for server in env.server.servers] == [settings.servers[0].base_url]


async def test_a_reward_that_needs_answers_asks_for_their_field():
    with pytest.raises(ConfigError, match="answer_field is not set"):
        await ready(answer_field=None)
    assert await ready(answer_field=None, reward_functions=["length"])


async def test_a_reward_whose_model_is_not_there_is_told_of_at_the_start():
    cosine = {"type": "cosine_scaled", "params": {"model_name": "./nowhere"}}
    with pytest.raises(ConfigError, match=r"reward_functions: .*\./nowhere is no folder"):
        await ready(reward_functions=["format", {"type": "combined", "params": {"rewards": [cosine]}}])


async def test_a_data_set_whose_questions_are_all_evaluated_can_only_be_evaluated():
    env = await ready(eval_split="train")
    assert len(env.eval_items) == 30
    with pytest.raises(ConfigError, match="no question of split train is left to train on"):
        await env.get_next_item()


async def test_an_answer_that_somebody_wrote_is_judged_with_its_parts():
    env = await ready(reward_functions=["accuracy", {"type": "format", "weight": 0.5}])
    question = await env.get_next_item()
    score = await env.judge_text(question, add_up_text(question))
    assert {part.name: part.value for part in score.parts} == {"accuracy": 1.0, "format": 0.0}
    assert score.reward == pytest.approx(1 / 1.5)
    trial = await env.attempt(question)
    assert (trial.result.final_response, trial.score.reward) == (add_up_text(question), score.reward)


def test_older_names_of_settings_mean_what_they_meant():
    config = DatasetEnv.env_config_cls(
        dataset_split="test[:3]",
        max_generations_per_prompt=6,
        include_messages_in_scoring=True,
        reward_funcs=["format"],
    )
    played = config.as_played()
    assert (config.split, played.group_size, played.include_messages) == ("test[:3]", 6, True)
    assert config.rewards == ["format"]


def test_chat_shaped_rows_need_no_answer_field(here):
    chat = [{"role": "user", "content": "What is 1 plus 2?"}, {"role": "assistant", "content": "#### 3"}]
    write_jsonl(here / "chat.jsonl", [{"messages": chat}] * 2)
    data = {"dataset_name": None, "dataset_path": "chat.jsonl", "prompt_field": "messages", "answer_field": None}

    async def scores():
        env = await ready(dataset_config=None, **data)
        return (await env.collect_trajectories(await env.get_next_item()))[0]["scores"]

    assert asyncio.run(scores()) == [1.0, 1.0]


def test_the_flags_are_the_same_with_and_without_namespace():
    bare = SEED_FLAGS.split()
    engine_flags = {"--model_name", "--base_url"}
    run_flags = {"--slurm", "--testing"}

    def with_namespace(word):
        if not word.startswith("--") or word in run_flags:
            return word
        return re.sub("^--", "--openai." if word in engine_flags else "--env.", word)

    made = [
        settings_from(split_flags(words), defaults_of(DatasetEnv, "serve"))
        for words in (bare, list(map(with_namespace, bare)))
    ]
    assert made[0] == made[1]
    settings = made[0]
    assert (settings.env.split, settings.env.reward_functions) == ("train[:100]", ["length", "format"])
    assert (settings.env.use_wandb, settings.options.slurm, settings.options.testing) == (True, True, True)
    assert settings.servers[0].base_url == "http://127.0.0.1:9001/v1"
