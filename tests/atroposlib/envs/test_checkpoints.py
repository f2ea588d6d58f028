"""An environment's checkpoint is whole, stays in its folder, and sets only what is the environment's own."""

import json

import numpy as np
import pytest

from atroposlib.envs.checkpoints import checkpoint_path, read_checkpoint, restore, write_checkpoint
from atroposlib.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gsm8k_0", "gsm8k_0"),
        ("../../etc", "_.._etc"),
        ("/etc/passwd", "_etc_passwd"),
        ("..", "env"),
        ("", "env"),
        (None, "env"),
    ],
)
def test_a_name_from_the_server_leads_nowhere_else(tmp_path, name, folder):
    assert checkpoint_path(str(tmp_path), name, 7) == tmp_path / "env_checkpoints" / folder / "step-7.json"


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "deep" / "step-1.json"
    write_checkpoint(path, {"iter": np.int64(5), "scores": np.array([0.5]), "name": "x"})
    assert read_checkpoint(path) == {"iter": 5, "scores": [0.5], "name": "x"}
    assert [each.name for each in path.parent.iterdir()] == ["step-1.json"]


def test_what_could_not_be_read_back_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "step-1.json"
    write_checkpoint(path, {"a": 1})
    with pytest.raises(TypeError, match="a object cannot be kept"):
        write_checkpoint(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, text):
    path = tmp_path / "step-1.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"step-1\.json"):
        read_checkpoint(path)


def test_no_checkpoint_is_a_fresh_start(tmp_path, caplog):
    assert read_checkpoint(tmp_path / "absent.json") == {}
    assert "starts anew" in caplog.text


def test_only_the_environments_own_data_is_set(caplog):
    class Env:
        label = "class"

        def __init__(self) -> None:
            self.server = "engine"

        def method(self) -> None: ...

        @property
        def prop(self) -> int:
            return 1

    env = Env()
    data = {"iter": 5, "label": "restored", "server": "x", "method": 1, "prop": 2, "_private": 3, "__class__": "x"}
    restore(env, data, protected={"server"})
    assert vars(env) == {"server": "engine", "iter": 5, "label": "restored"}
    assert "__class__, _private, method, prop, server" in caplog.text
