"""Where tokenizers come from, and how soon it is said that there is none."""

import logging

import pytest

from atroposlib import hub
from atroposlib.envs.tokenizers import load_tokenizer
from atroposlib.errors import ConfigError
from tests.byte_tokenizer import make_tokenizer


def never(endpoint):
    raise AssertionError(f"{endpoint} was asked")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tokenizer().save_pretrained(tmp_path / "org" / "mine")
    return tmp_path


@pytest.mark.parametrize("name", ["{}/org/mine", "org/mine", "./org/mine"])
def test_a_folder_is_read_without_asking_the_hub(folder, monkeypatch, name):
    monkeypatch.setattr(hub, "hub_answers", never)
    tokenizer = load_tokenizer(name.format(folder))
    assert tokenizer.decode(tokenizer.encode("some words")) == "some words"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert isinstance(prompt, list)


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "org/mine/below"])
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(folder, monkeypatch, name):
    monkeypatch.setattr(hub, "hub_answers", never)
    with pytest.raises(ConfigError, match=f"no tokenizer '{name}': set --env.tokenizer_name"):
        load_tokenizer(name)


def test_a_name_is_looked_for_in_the_cache_alone_where_the_hub_does_not_answer(folder, monkeypatch, caplog):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "REACH_S", 1.0)
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigError, match="no tokenizer 'org/absent'"):
        load_tokenizer("org/absent")
    assert "Retrying" not in caplog.text
