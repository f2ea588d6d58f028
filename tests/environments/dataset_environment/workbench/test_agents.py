import pytest

from atroposlib.errors import ConfigError
from environments.dataset_environment.config_files import list_configs
from environments.dataset_environment.workbench.agents import read_agent


@pytest.mark.parametrize("name", list_configs("agents"))
def test_every_shipped_agent_can_be_read(name):
    assert read_agent(name).sampling


def test_an_agent_of_the_working_folder_goes_before_that_of_the_package(here, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret")
    (here / "configs" / "agents").mkdir(parents=True)
    (here / "configs" / "agents" / "nous_hermes_8b.yaml").write_text(
        "engine: openai\nbase_url: http://localhost:1/v1\napi_key: ${SOME_KEY}\ntop_p: 0.5\n"
    )
    agent = read_agent("nous_hermes_8b")
    assert (agent.engine, agent.api_key, agent.sampling) == ("openai", "secret", {"top_p": 0.5})
    assert "secret" not in repr(agent)


def test_a_url_is_all_that_an_agent_needs(here):
    (here / "own.yaml").write_text("base_url: http://localhost:1/v1\nmodel_name: my-model\n")
    agent = read_agent("own.yaml")
    assert (agent.engine, agent.base_url, agent.model_name) == ("openai", "http://localhost:1/v1", "my-model")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("engine: embedded\nbase_url: http://x", "base_url belongs to the engine openai, not to embedded"),
        ("engine: hf\nmodel_name: x\nbase_url: http://x", "base_url belongs to the engine openai, not to hf"),
        ("api_key: secret", "api_key belongs to the engine openai, not to embedded"),
        ("engine: hf\nmodel_name: x\nwait_s: 9", "wait_s belongs to the engine openai, not to hf"),
        ("engine: vllm", "engine"),
        ("engine: openai", "needs its base_url"),
        ("engine: hf", "needs its model_name"),
        ("base_url: ftp://x", "base_url: 'ftp://x' is no URL"),
        ("temprature: 1", "temprature"),
        ("engine: openai\nbase_url: x\napi_key: ${NOT_SET_ANYWHERE}", "api_key names"),
    ],
)
def test_a_wrong_agent_is_refused_by_file_and_key(here, text, complaint):
    (here / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"own.yaml: .*{complaint}"):
        read_agent("own.yaml")
