"""``resolve_openai_configs``: which engines a run has."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from atroposlib.envs.server_handling.openai_server import APIServerConfig, resolve_openai_configs
from atroposlib.envs.server_handling.server_baseline import ServerBaseline
from atroposlib.errors import ConfigError

ONE = APIServerConfig(base_url="http://one/v1", model_name="one")
TWO = APIServerConfig(base_url="http://two/v1", model_name="two")
MERGED = {"base_url": "http://merged/v1", "model_name": "merged"}
FLAG = {"openai.model_name": "merged"}


def resolve(defaults: Any, yaml: Any = None, flags: Any = None) -> Any:
    return resolve_openai_configs(defaults, MERGED, {"openai": yaml} if yaml else {}, flags or {}, logging.getLogger())


def test_one_engine_is_made_of_the_merged_settings():
    assert resolve([ONE])[0].model_name == resolve(ONE).model_name == "merged"
    assert isinstance(resolve([ONE], flags=FLAG), list)
    assert resolve([])[0].base_url == "http://merged/v1"


def test_several_engines_are_taken_as_they_are():
    assert resolve([ONE, TWO]) == [ONE, TWO]
    assert resolve([ONE], yaml=[ONE.model_dump(), TWO.model_dump()]) == [ONE, TWO]


def test_a_flag_that_could_mean_any_engine_is_an_error():
    with pytest.raises(ConfigError, match=r"--openai\.model_name: 2 engines"):
        resolve([ONE, TWO], flags=FLAG)


def test_a_baseline_stays_one_unless_an_engine_is_described():
    baseline = ServerBaseline()
    assert resolve(baseline) is baseline
    assert resolve(baseline, flags=FLAG)[0].model_name == "merged"


def test_wrong_settings_are_errors_of_configuration():
    with pytest.raises(ConfigError, match="timeout"):
        resolve_openai_configs([ONE], {"timeout": "soon"}, {}, {}, logging.getLogger())
