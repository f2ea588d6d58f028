"""Data sets on disk, with a cache of their own."""

import pytest


@pytest.fixture(autouse=True)
def cache_of_data_sets(tmp_path_factory, monkeypatch):
    """What ``datasets`` prepares goes to a folder of the test session."""
    datasets = pytest.importorskip("datasets")
    cache = tmp_path_factory.getbasetemp() / "datasets_cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
