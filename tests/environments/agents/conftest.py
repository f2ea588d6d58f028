"""Agents of other people, unmodified: installing them takes a while, so their tests run only where asked for."""

from __future__ import annotations

import pytest

COMMAND = "python -m pytest -m agents tests/environments/agents"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "agents" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("agents"):
            item.add_marker(pytest.mark.skip(reason=f"installs a whole agent: {COMMAND}"))
