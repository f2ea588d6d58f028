"""What describes an engine."""

import pytest

from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, OpenaiConfig, ReasoningConfig
from atroposlib.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://localhost:9001", "http://localhost:9001/v1"),
        ("http://localhost:9001/", "http://localhost:9001/v1"),
        ("localhost:9001", "http://localhost:9001/v1"),
        ("http://localhost:9001/v1/", "http://localhost:9001/v1"),
        ("https://host/api/openai", "https://host/api/openai"),
        ("", ""),
        (None, None),
    ],
)
def test_a_url_without_a_path_gets_v1(given, meant):
    assert APIServerConfig(base_url=given).base_url == meant


def test_the_fields_and_defaults_that_environments_rely_on_are_there():
    config = OpenaiConfig()
    assert (config.timeout, config.num_max_requests_at_once, config.num_requests_for_eval) == (1200, 512, 64)
    assert (config.model_name, config.rolling_buffer_length, config.server_type) == ("default", 1000, "openai")
    assert (config.tokenizer_name, config.api_key, config.base_url) == ("none", "", "")
    assert (config.n_kwarg_is_ignored, config.health_check, config.wait_s) == (False, True, 300)


@pytest.mark.parametrize("name", [None, "", "default"])
def test_no_model_name_is_none_given(name):
    assert not APIServerConfig(model_name=name).has_model_name


def test_the_key_may_come_from_a_named_variable(monkeypatch):
    monkeypatch.setenv("MY_KEY", "k")
    assert APIServerConfig(api_key_env="MY_KEY").resolve_api_key() == "k"
    assert APIServerConfig(api_key="direct", api_key_env="MY_KEY").resolve_api_key() == "direct"


def test_a_named_variable_that_is_not_set_is_an_error(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ConfigError, match="MY_KEY"):
        OpenAIServer(APIServerConfig(base_url="http://h", api_key_env="MY_KEY"))


def test_an_engine_without_a_url_names_the_flag():
    with pytest.raises(ConfigError, match=r"--openai\.base_url"):
        OpenAIServer(APIServerConfig())


def test_an_unknown_effort_is_an_error_with_the_list():
    with pytest.raises(ConfigError, match="none, minimal, low"):
        ReasoningConfig(effort="extreme")


@pytest.mark.parametrize(
    ("config", "url", "body"),
    [
        (ReasoningConfig(), None, None),
        (ReasoningConfig(enabled=True), "https://api.openai.com/v1", {"reasoning_effort": "medium"}),
        (ReasoningConfig(effort="high"), "https://api.openai.com/v1", {"reasoning_effort": "high"}),
        (
            ReasoningConfig(effort="high", max_tokens=7),
            "http://h/v1",
            {"reasoning": {"enabled": True, "effort": "high"}},
        ),
        (ReasoningConfig(max_tokens=7), "http://h/v1", {"reasoning": {"enabled": True, "max_tokens": 7}}),
    ],
)
def test_reasoning_is_said_in_the_dialect_of_the_engine(config, url, body):
    assert config.build_extra_body(url) == body
