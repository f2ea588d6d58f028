import pytest
import yaml

from atroposlib.envs.argv import split_flags
from atroposlib.envs.cli import defaults_of
from atroposlib.envs.settings import settings_from
from atroposlib.errors import ConfigError
from environments.dataset_environment.config_files import find_config, list_configs, read_env_config
from environments.dataset_environment.dataset_env import DatasetEnv
from environments.dataset_environment.rewards import make_rewards

ACCURACY = {"type": "accuracy", "weight": 1.0}
WANTED = {
    "dataset_name": "gsm8k",
    "dataset_config": "main",
    "prompt_field": "question",
    "temperature": 0.7,
    "reward_functions": [ACCURACY],
}


def settings(*words):
    return settings_from(split_flags(words), defaults_of(DatasetEnv, "serve"))


@pytest.fixture
def read(here):
    """Reads a document that stands in a file."""

    def write_and_read(document):
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        (here / "own.yaml").write_text(text)
        return read_env_config("own.yaml")

    return write_and_read


DATA = {"dataset_name": "gsm8k", "dataset_config": "main", "prompt_field": "question"}
SHAPES = {
    "rewards at the top, beside generation": {
        "dataset": DATA,
        "generation": {"temperature": 0.7},
        "reward_functions": [ACCURACY],
    },
    "rewards inside dataset": {"dataset": DATA | {"reward_functions": [ACCURACY], "temperature": 0.7}},
    "flat": DATA | {"temperature": 0.7, "reward_functions": [ACCURACY]},
    "flat, with dataset over it": DATA
    | {"temperature": 0.7, "dataset_name": "other", "dataset": {"dataset_name": "gsm8k"}}
    | {"reward_functions": [ACCURACY]},
    "env": {"env": DATA | {"temperature": 0.7, "reward_functions": [ACCURACY]}},
    "env over dataset": {"dataset": DATA | {"temperature": 1.0}, "env": {"temperature": 0.7}}
    | {"reward_functions": [ACCURACY]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_means_the_same(read, shape):
    assert read(SHAPES[shape])["env"] == WANTED


def test_entries_of_rewards_may_be_names(read):
    assert read({"reward_functions": ["accuracy", {"type": "format"}]})["env"]["reward_functions"] == [
        "accuracy",
        {"type": "format"},
    ]


def test_sampling_beyond_the_settings_goes_to_the_engine(read):
    assert read({"generation": {"top_k": 20, "top_p": 0.9}})["env"] == {"top_p": 0.9, "extra_body": {"top_k": 20}}


def test_engines_of_older_files_are_read_with_their_variables(read, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret")
    server = {"model_name": "m", "base_url": "http://localhost:9004/v1", "api_key": "${SOME_KEY}"}
    assert read({"server_configs": [server]})["openai"] == [server | {"api_key": "secret"}]


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"datset": {}}, r"unknown key datset \(is dataset"),
        ({"dataset": {"prompt_feild": "q"}}, r"unknown key dataset.prompt_feild \(is prompt_field"),
        ({"generation": {"temprature": 1}}, r"unknown key generation.temprature \(is temperature"),
        ({"dataset": []}, "dataset must be a mapping, not a list"),
        ({"server_configs": [{"api_key": "${NOT_SET_ANYWHERE}"}]}, r"server_configs\[0\].api_key names \$\{NOT_SET"),
        ({"openai": {}, "server_configs": [{}]}, "keep one"),
        ("a: [", "is not YAML"),
        ("- a", "found a list"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_the_key_at_fault(read, document, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read(document)


def test_names_are_looked_up_in_the_working_folder_and_then_in_the_package(here):
    assert find_config("gsm8k", "envs").parent.name == "configs"
    for folder in ("environments/dataset_environment/configs", "configs/envs"):
        (here / folder).mkdir(parents=True)
        (here / folder / "gsm8k.yaml").write_text("")
        assert find_config("gsm8k", "envs").parent == here.joinpath(folder).relative_to(here)
    assert {"gsm8k", "gsm8k_debug", "dataset_local"} <= list_configs("envs").keys()
    assert {"nous_hermes_8b", "embedded"} <= list_configs("agents").keys()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("gsm9k", r"no configuration 'gsm9k' \(is gsm8k"), ("nowhere/gsm8k.yaml", "there is no configuration file")],
)
def test_a_name_without_a_file_is_told_with_the_names_there_are(here, name, complaint):
    with pytest.raises(ConfigError, match=complaint):
        find_config(name, "envs")


@pytest.mark.parametrize("name", list_configs("envs"))
def test_every_shipped_configuration_makes_settings(name):
    made = settings("--config", name)
    assert made.env.dataset_name or made.env.dataset_path
    assert made.env.rewards


def test_flags_go_over_the_file(here):
    made = settings("--config", "gsm8k", "--split", "train[:100]", "--temperature", "0.2", "--max_tokens", "5")
    assert (made.env.split, made.env.temperature, made.env.max_tokens) == ("train[:100]", 0.2, 5)
    assert made.env.dataset_name == "gsm8k"
    assert made.servers[0].base_url == "http://localhost:9001/v1"


OLDER_FILE = """\
tokenizer_name: "NousResearch/DeepHermes-3-Llama-3-8B-Preview"
group_size: 1
use_wandb: false
max_num_workers: 1
rollout_server_url: "http://localhost:8000"
total_steps: 1
batch_size: 1
steps_per_eval: 5
max_token_length: 4096
wandb_name: "dataset_test_local"
ensure_scores_are_not_same: false
dataset_name: "gsm8k"
dataset_config: null
prompt_field: "question"
ground_truth_field: "None"
prefill: "<think>\\n"
shuffle_dataset: true
max_generations_per_prompt: 1
length_warmup_steps: 0
min_tokens: 0
reward_functions:
  - type: "accuracy"
    params: {tolerance: 1e-6, split_on_think_tag: true}
server_configs:
  - {model_name: "gpt-4.1-nano", base_url: "https://api.openai.com/v1", num_requests_for_eval: 256}
"""


def test_a_file_of_atropos_is_read_as_it_is(here):
    (here / "older.yaml").write_text(OLDER_FILE)
    made = settings("--config", "older.yaml")
    assert (made.env.max_token_length, made.env.prefill, made.env.ground_truth_field) == (4096, "<think>\n", None)
    assert (made.servers[0].model_name, made.servers[0].num_requests_for_eval) == ("gpt-4.1-nano", 256)
    (accuracy,) = make_rewards(made.env).reward_functions
    assert accuracy.tolerance == 1e-6


@pytest.mark.parametrize(
    ("words", "rewards"),
    [
        (("length",), ["length"]),
        (("length", "format"), ["length", "format"]),
        (("length,format",), ["length", "format"]),
        (('{"type": "length", "weight": 0.5}',), [{"type": "length", "weight": 0.5}]),
        (('["length", {"type": "format"}]',), ["length", {"type": "format"}]),
    ],
)
def test_rewards_are_named_on_the_command_line_in_any_way(words, rewards):
    assert settings("--reward_functions", *words).env.rewards == rewards


def test_data_may_lie_beside_the_file_that_names_it(here):
    (here / "there").mkdir()
    (here / "there" / "d.jsonl").write_text("")
    (here / "there" / "own.yaml").write_text("dataset_path: d.jsonl")
    assert read_env_config("there/own.yaml")["env"]["dataset_path"] == str(here / "there" / "d.jsonl")
