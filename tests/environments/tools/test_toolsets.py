"""Names of tools and toolsets."""

import random

import pytest

from atroposlib.errors import ConfigError
from environments.tools import resolve_tools
from environments.tools.toolsets import draw_toolsets


def names(*arguments):
    return [tool.name for tool in resolve_tools(*arguments)]


def test_without_a_choice_every_tool_is_offered():
    assert names() == ["terminal", "process", "read_file", "write_file", "patch", "search_files", "todo"]


def test_toolsets_are_added_and_taken_away():
    assert names(["terminal", "file"], ["terminal"]) == ["read_file", "write_file", "patch", "search_files"]
    assert names([]) == []


def test_an_unknown_toolset_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"Unknown toolset 'nothing'; known are terminal, "):
        resolve_tools(["nothing"])
    with pytest.raises(ConfigError, match="Unknown toolset"):
        resolve_tools(None, ["nothing"])


def test_draws_repeat_by_their_seed_and_are_never_empty():
    first = [draw_toolsets("balanced", random.Random(seed)) for seed in range(50)]
    assert first == [draw_toolsets("balanced", random.Random(seed)) for seed in range(50)]
    assert all(first)
    assert len({tuple(draw) for draw in first}) > 3


def test_an_unknown_distribution_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"Unknown distribution 'x'; known are default"):
        draw_toolsets("x", random.Random(0))


def test_a_schema_is_in_openai_form():
    schema = resolve_tools(["shell"])[0].schema()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "terminal"
    assert schema["function"]["parameters"]["required"] == ["command"]
