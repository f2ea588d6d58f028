"""Command line over file over mode over ``config_init`` over fields, and an error names what to change."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from atroposlib.envs.argv import split_flags
from atroposlib.envs.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.envs.masking import is_secret, masked
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ServerBaseline
from atroposlib.envs.settings import Defaults, Settings, settings_from
from atroposlib.errors import ConfigError


class Nested(BaseModel):
    depth: int = 1
    label: str = "x"


class Config(BaseEnvConfig):
    tags: list[str] = Field(["one"])
    extra_body: dict[str, Any] | None = None
    limits: dict[str, int] = Field({})
    nested: Nested = Nested()
    note: str | None = "note"


ONE = APIServerConfig(base_url="http://one:1/v1", model_name="m1", api_key="sk-one")
TWO = APIServerConfig(base_url="http://two:2/v1", model_name="m2")


def settings(
    *words: str, env: BaseEnvConfig | None = None, servers: Any = ONE, config: Path | None = None, **more: Any
) -> Settings:
    defaults = Defaults(env or Config(), servers, Config, **more)
    typed = [*words, *(["--config", str(config)] if config else [])]
    return settings_from(split_flags(typed), defaults)


def yaml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_each_layer_wins_over_the_one_below(tmp_path):
    path = yaml_file(tmp_path, "env: {group_size: 30, max_num_workers: 30}\n")
    made = settings(
        *("--env.group_size", "40"),
        env=Config(group_size=10, max_num_workers=10, steps_per_eval=10, total_steps=10),
        mode_env={"group_size": 20, "max_num_workers": 20, "steps_per_eval": 20},
        config=path,
    ).env
    assert (made.group_size, made.max_num_workers, made.steps_per_eval, made.total_steps) == (40, 30, 20, 10)
    assert made.max_token_length == 2048


def test_the_last_of_a_repeated_flag_wins():
    assert settings("--env.group_size", "2", "--env.group_size", "3").env.group_size == 3


def test_every_form_of_a_flag_is_understood():
    made = settings(
        *("--env.use_wandb", "--env.include_messages", "false", "--env.max_num_workers", "-1"),
        *("--env.worker_timeout=-1", "--env.note", "None", "--tags", "a", "b", "--env.eval_handling", "NONE"),
        *("--env.max-token-length", "7", "--slurm", "--testing", "false"),
    )
    assert made.env.use_wandb is True
    assert made.env.include_messages is False
    assert (made.env.max_num_workers, made.env.worker_timeout, made.env.note) == (-1, -1.0, None)
    assert made.env.tags == ["a", "b"]
    assert made.env.eval_handling is EvalHandlingEnum.NONE
    assert made.env.max_token_length == 7
    assert (made.options.slurm, made.options.testing) == (True, False)


def test_a_flag_without_namespace_is_looked_up_in_env_and_then_in_openai():
    made = settings("--tokenizer_name", "t", "--model_name", "m", "--base_url", "http://h:1")
    assert made.env.tokenizer_name == "t"
    assert isinstance(made.servers, list)
    (server,) = made.servers
    assert (server.model_name, server.base_url, server.tokenizer_name) == ("m", "http://h:1/v1", "none")


def test_entries_of_dicts_are_set_one_by_one_over_the_file(tmp_path):
    path = yaml_file(tmp_path, "env: {extra_body: {top_k: 1, keep: true}, nested: {depth: 5}}\n")
    made = settings(
        *("--env.extra_body.top_k", "5", "--env.extra_body.a.b", '["x"]', "--env.limits.read-file", "9"),
        *("--env.nested.label", "new"),
        config=path,
    ).env
    assert made.extra_body == {"top_k": 5, "keep": True, "a": {"b": ["x"]}}
    assert made.limits == {"read-file": 9}
    assert made.nested == Nested(depth=5, label="new")


def test_values_of_the_environment_itself_are_not_changed():
    env = Config(extra_body={"a": 1})
    settings("--env.extra_body.a", "2", "--env.group_size", "9", env=env)
    assert env.extra_body == {"a": 1}
    assert env.group_size == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env.group_sise", "1"], "--env.group_sise; is --env.group_size meant"),
        (["--group_sise", "1"], "is --env.group_size meant"),
        (["--base-ulr", "x"], "is --openai.base_url meant"),
        (["--openai.group_size", "1"], "--env.group_size"),
        (["--tetsing"], "is --testing meant"),
        (["--zzz"], "--help"),
        (["--env"], "unknown flag --env"),
        (["--env.group_size", "x"], "--env.group_size: .*integer.*'x'"),
        (["--group_size", "0"], "--group_size: .*greater than or equal to 1"),
        (["--env.use_wandb", "perhaps"], "--env.use_wandb: .*boolean.*'perhaps'"),
        (["--env.group_size.x", "1"], "group_size is not a dict"),
        (["--env.reasoning_effort", "huge"], "must be one of none, minimal"),
        (["--openai.timeout", "soon"], "--openai.timeout"),
        (["--config", "/does/not/exist.yaml"], "--config /does/not/exist.yaml: No such file"),
    ],
)
def test_a_wrong_flag_is_one_message_that_names_it(words, message):
    with pytest.raises(ConfigError, match=message):
        settings(*words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env: {weight: 1}", "unknown key env.weight; is inference_weight meant"),
        ("enw: {}", "unknown section 'enw'; is env meant"),
        ("surroundings: {}", "unknown section 'surroundings'; known are env, openai,"),
        ("env: [1]", "env must be a mapping"),
        ("- 1", "expected sections"),
        ("env: {group_size: many}", "run.yaml: env.group_size: .*'many'"),
        ("a: [", "is not YAML: line 1: "),
        ("openai: {base: x}", "unknown key openai.base"),
        ("openai: [{}, {modell_name: x}]", r"openai\[1\].modell_name; is model_name or"),
        ("openai: {api_key: '${NO_SUCH_VARIABLE_HERE}'}", "NO_SUCH_VARIABLE_HERE"),
    ],
)
def test_a_wrong_file_is_one_message_that_names_the_key(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        settings(config=yaml_file(tmp_path, text))


def test_an_empty_file_changes_nothing(tmp_path):
    assert settings(config=yaml_file(tmp_path, "")).env == Config()


def test_a_file_sets_the_run_too_and_flags_win(tmp_path):
    path = yaml_file(tmp_path, "slurm: true\ntesting: true\nenv: {note: None}\n")
    made = settings("--testing", "no", config=path)
    assert (made.options.slurm, made.options.testing) == (True, False)
    assert made.env.note is None


# engines


def test_a_baseline_becomes_an_engine_when_a_url_is_given():
    made = settings("--openai.base_url", "http://127.0.0.1:9", servers=ServerBaseline(timeout=7, model_name="m"))
    assert made.servers == [APIServerConfig(base_url="http://127.0.0.1:9/v1", timeout=7, model_name="m")]
    assert made.engine_chosen


def test_a_baseline_stays_one_without_a_url():
    made = settings("--openai.timeout", "9", servers=ServerBaseline(model_name="m"))
    assert made.servers == ServerBaseline(timeout=9, model_name="m")
    assert not made.engine_chosen


@pytest.mark.parametrize("servers", [ONE, [ONE]])
def test_one_engine_is_merged_with_file_and_flags(tmp_path, servers):
    path = yaml_file(tmp_path, "openai: [{timeout: 3, model_name: file}]")
    made = settings("--openai.model_name", "typed", servers=servers, config=path)
    assert isinstance(made.servers, list)
    (server,) = made.servers
    assert (server.base_url, server.timeout, server.model_name) == ("http://one:1/v1", 3, "typed")
    assert server.api_key == "sk-one"


def test_several_engines_in_a_file_replace_those_of_the_environment(tmp_path):
    path = yaml_file(tmp_path, "openai: [{base_url: 'http://a:1'}, {base_url: 'http://b:2/x'}]")
    made = settings(config=path)
    assert isinstance(made.servers, list)
    assert [server.base_url for server in made.servers] == ["http://a:1/v1", "http://b:2/x"]


def test_a_flag_for_one_of_several_engines_is_an_error():
    assert settings(servers=[ONE, TWO]).servers == [ONE, TWO]
    with pytest.raises(ConfigError, match="2 engines are configured"):
        settings("--openai.timeout", "1", servers=[ONE, TWO])


def test_an_environment_without_engines_may_be_given_one():
    assert settings(servers=[]).servers == []
    made = settings("--openai.base_url", "http://h:1/v1", servers=[])
    assert made.servers == [APIServerConfig(base_url="http://h:1/v1")]


def test_an_environments_own_server_config_keeps_its_class():
    class Mine(APIServerConfig):
        region: str = "here"

    made = settings("--openai.region", "there", servers=[Mine(base_url="http://h:1/v1")])
    assert isinstance(made.servers, list)
    assert made.servers == [Mine(base_url="http://h:1/v1", region="there")]


def test_a_namespace_of_the_environments_own_is_set_like_the_others(tmp_path):
    path = yaml_file(tmp_path, "teacher: {timeout: 3}")
    made = settings("--teacher.base_url", "http://t:1", config=path, extra={"teacher": APIServerConfig()})
    assert made.extra["teacher"] == APIServerConfig(base_url="http://t:1/v1", timeout=3)


def test_a_key_in_a_file_may_name_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-from-variable")
    made = settings(config=yaml_file(tmp_path, "openai: {api_key: '${SOME_KEY}'}"))
    assert isinstance(made.servers, list)
    assert made.servers[0].api_key == "sk-from-variable"


def test_a_masked_key_in_a_file_is_no_key(tmp_path):
    made = settings(config=yaml_file(tmp_path, "openai: {api_key: '***'}"))
    assert isinstance(made.servers, list)
    assert made.servers[0].api_key == "sk-one"


def test_secrets_are_masked_wherever_they_stand():
    values = masked(
        {"openai": [ONE], "extra": {"headers": {"Authorization": "Bearer x"}, "max_tokens": 5}, "token": "t"}
    )
    assert values["openai"][0]["api_key"] == "***"
    assert values["openai"][0]["base_url"] == "http://one:1/v1"
    assert values["extra"] == {"headers": {"Authorization": "***"}, "max_tokens": 5}
    assert values["token"] == "***"
    assert "sk-one" not in repr(values)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("OPENAI_API_KEY", True),
        ("hf_token", True),
        ("password", True),
        ("client_secret", True),
        ("api_key_env", False),
        ("rollout_server_token_env", False),
        ("max_token_length", False),
        ("tokenizer_name", False),
        ("stop_token", False),
        ("keys", False),
    ],
)
def test_secrets_are_known_by_their_names(name, secret):
    assert is_secret(name) is secret


def test_a_wrong_secret_is_not_shown():
    with pytest.raises(ConfigError) as error:
        settings("--openai.api_key", '["sk-very-secret"]', "--openai.timeout", "x", servers=[APIServerConfig()])
    assert "sk-very-secret" not in str(error.value)


def test_a_required_setting_is_asked_for_by_its_flag():
    class Strict(BaseEnvConfig):
        dataset_name: str

    defaults = Defaults(Strict.model_construct(), ONE, Strict)
    with pytest.raises(ConfigError, match=r"--env\.dataset_name is required"):
        settings_from([], defaults)
    made = settings_from(split_flags(["--dataset_name", "x"]), defaults)
    assert made.env == Strict(dataset_name="x")


def test_settings_of_a_plainer_class_are_taken_over():
    made = settings(env=BaseEnvConfig(group_size=9))
    assert made.env == Config(group_size=9)


def test_an_unknown_keyword_is_ignored_but_said(caplog):
    BaseEnvConfig(group_sise=3)
    (record,) = caplog.records
    assert "no field 'group_sise'" in record.message
    assert "group_size" in record.message
