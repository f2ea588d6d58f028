import pytest

from atroposlib.errors import ConfigError
from environments.dataset_environment.launch_local_dataset_run import (
    DEFAULTS_OF_THE_TRAINER,
    main,
    read_command_line,
    training_of,
)


def words_after(flag, words):
    return list(words)[list(words).index(flag) + 1]


def test_without_flags_the_shipped_policy_is_trained_on_the_shipped_questions():
    choice = read_command_line([])
    training = training_of(choice, 7001, 7002)
    assert words_after("--config", training.environment.argv) == "dataset_local"
    assert words_after("--openai.base_url", training.environment.argv) == "http://127.0.0.1:7001/v1"
    assert words_after("--vllm-port", training.trainer.argv) == "7001"
    assert words_after("--atropos-url", training.trainer.argv) == "http://127.0.0.1:7002"
    assert "--model" not in training.trainer.argv
    assert training.steps == int(DEFAULTS_OF_THE_TRAINER["training-steps"])


def test_flags_go_to_the_trainer_and_to_the_environment():
    trainers = ("--model", "DIR", "--training_steps", "3", "--trainer.lr", "1e-4", "--trainer.batch_size", "8")
    own = ("--group_size", "4", "--env.split=train[:100]", "--reward_functions", "length", "format", "--use_wandb")
    choice = read_command_line([*trainers, *own])
    training = training_of(choice, 7001, 7002)
    assert training.steps == 3
    for flag, value in (("--model", "DIR"), ("--training-steps", "3"), ("--lr", "1e-4"), ("--batch-size", "8")):
        assert words_after(flag, training.trainer.argv) == value
    assert choice.environment_words == ("--config", "dataset_local", *own)


@pytest.mark.parametrize("flag", ["--dataset_name", "--env.dataset_path"])
def test_naming_a_data_set_leaves_the_default_configuration_aside(flag):
    assert read_command_line([flag, "x"]).environment_words == (flag, "x")
    assert read_command_line([flag, "x", "--config", "c"]).environment_words == ("--config", "c", flag, "x")


def test_an_engine_that_is_there_already_is_asked_and_updated():
    training = training_of(read_command_line(["--base_url", "http://gpu:8000/v1"]), 7001, 7002)
    assert words_after("--openai.base_url", training.environment.argv) == "http://gpu:8000/v1"
    assert words_after("--engine-url", training.trainer.argv) == "http://gpu:8000/v1"
    assert "--vllm-port" not in training.trainer.argv


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--config", "gsm9k"], "no configuration 'gsm9k'"),
        (["--group_sise", "4"], "unknown flag --group_sise"),
        (["--env.temperature", "hot"], "--env.temperature"),
        (["--base_url", "http://gpu:8000/v1/completions"], "give the base of its routes: http://gpu:8000/v1"),
        (["--env.judge_base_url", "http://gpu/v1/chat/completions"], "--env.judge_base_url: http://gpu/v1/chat/"),
        (["--training_steps", "many"], "--training_steps: 'many' is no number"),
        (["--trainer.training_steps", "0"], "--training_steps: '0' is no number"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_is_started(here, capsys, words, complaint):
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_word_that_belongs_to_no_flag_is_refused():
    with pytest.raises(ConfigError, match="unexpected word 'gsm8k'"):
        read_command_line(["gsm8k"])
