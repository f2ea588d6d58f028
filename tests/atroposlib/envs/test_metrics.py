"""The numbers that every environment reports."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.metrics import (
    describe_counts,
    describe_durations,
    describe_lengths,
    percentile,
    rollout_table,
    rollout_text,
)


def test_lengths_are_described_with_the_share_near_the_limit():
    metrics = describe_lengths([10, 20, 30, 100], longest=100)
    assert metrics["train/completion_lengths"] == 40
    assert (metrics["train/completion_lengths_min"], metrics["train/completion_lengths_max"]) == (10, 100)
    assert metrics["train/completion_lengths_near_limit"] == 0.25
    assert "train/completion_lengths_near_limit" not in describe_lengths([1], longest=-1)


def test_nothing_is_described_by_nothing():
    assert describe_lengths([], 10) == {}
    assert describe_durations([]) == {}
    assert rollout_table([]) is None


def test_counts_are_listed_by_reason_with_their_sum():
    assert describe_counts("failed", Counter(a=2, b=1)) == {"failed/a": 2, "failed/b": 1, "failed_total": 3}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values_and_grows_with_the_share(values, share):
    assert percentile(values, share) in values
    assert percentile(values, 0) <= percentile(values, share) <= percentile(values, 1) == max(values)


def test_rows_of_different_lengths_make_one_table():
    table = rollout_table([[("text", 1.0)], [("other", 0.0, "more")]])
    assert table is not None
    assert table.columns == ["text", "score", "column_3"]
    assert table.rows == [["text", 1.0, None], ["other", 0.0, "more"]]


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ({"messages": [[{"role": "user", "content": None}]]}, "[user] "),
        ({"messages": [["plain"]]}, "plain"),
        ({"messages": [[{"role": "assistant", "tool_calls": [{"function": "f"}]}]]}, "[assistant] \n-> f"),
        ({"messages": None, "tokens": [[1, 2]]}, "<1 2>"),
    ],
)
def test_a_rollout_is_text_whatever_it_holds(group, text):
    assert rollout_text(group, 0, lambda ids: f"<{' '.join(map(str, ids))}>") == text


def test_a_rollout_without_messages_and_tokenizer_says_so():
    assert rollout_text({"messages": [], "tokens": [[1]]}, 0, None) == "(no messages)"
