"""The graph of a rollout: concatenation by construction, longest match, refusals with a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.envs.server_handling.generation import SampledTokens
from atroposlib.envs.server_handling.token_graph import (
    MASKED,
    PROMPT_LOGPROB,
    TokenGraph,
    check_sampled,
    prompt_after,
    sequence_of,
)
from atroposlib.errors import RolloutInvalid


def ids_of(node) -> list[int]:
    return prompt_after(node, []).tolist()


def sampled(*ids: int, reason: str = "stop") -> SampledTokens:
    return SampledTokens(list(ids), [-0.5] * len(ids), reason, None)


def turn(graph: TokenGraph, prompt: list[int], *completions: SampledTokens):
    """One request: its prompt, matched and extended, and its completions."""
    parent = graph.longest_match(prompt)
    context = graph.add_context(parent, prompt[parent.end :], "")
    return [graph.add_sampled(context, each, "") for each in completions]


def test_a_prompt_that_extends_a_turn_continues_it():
    graph = TokenGraph()
    turn(graph, [1, 2], sampled(3, 4))
    turn(graph, [1, 2, 3, 4, 5], sampled(6))
    (leaf,) = graph.leaves()
    sequence = sequence_of(leaf)
    assert sequence.ids == [1, 2, 3, 4, 5, 6]
    assert sequence.mask == [MASKED, MASKED, 3, 4, MASKED, 6]
    assert sequence.logprobs == [PROMPT_LOGPROB, PROMPT_LOGPROB, -0.5, -0.5, PROMPT_LOGPROB, -0.5]


def test_the_longest_match_is_continued_not_the_first():
    graph = TokenGraph()
    short, long = turn(graph, [1], sampled(2), sampled(2, 3))
    (after,) = turn(graph, [1, 2, 3, 4], sampled(5))
    assert after.path()[1] is long
    assert graph.leaves() == [short, after]


def test_a_prompt_that_differs_forks_and_trains_the_old_turn_only_in_its_own_sequence():
    graph = TokenGraph()
    turn(graph, [1, 2], sampled(3, 4))
    turn(graph, [1, 2, 3, 9], sampled(5))
    first, second = (sequence_of(leaf) for leaf in graph.leaves())
    assert first.mask == [MASKED, MASKED, 3, 4]
    assert second.mask == [MASKED] * 4 + [5]


def test_the_same_prompt_again_gives_a_sequence_of_its_own_even_after_an_empty_completion():
    graph = TokenGraph()
    for completion in (sampled(), sampled(7), sampled()):
        turn(graph, [1, 2], completion)
    assert [sequence_of(leaf).ids for leaf in graph.leaves()] == [[1, 2], [1, 2, 7], [1, 2]]


def test_continuations_take_the_place_of_what_they_continue():
    graph = TokenGraph()
    turn(graph, [1], sampled(2), sampled(3), sampled(4))
    turn(graph, [1, 3, 8], sampled(5), sampled(6))
    assert [ids_of(leaf) for leaf in graph.leaves()] == [[1, 2], [1, 3, 8, 5], [1, 3, 8, 6], [1, 4]]


@pytest.mark.parametrize(
    ("ids", "logprobs", "reason"),
    [
        ([1, 2], [-0.1], "logprobs_misaligned"),
        ([1], [-0.1, -0.1], "logprobs_misaligned"),
        ([1], [None], "logprob_missing"),
        ([1], [float("nan")], "logprob_invalid"),
        ([1], [0.5], "logprob_invalid"),
        ([1], ["-0.1"], "logprob_invalid"),
        ([10], [-0.1], "id_outside_vocabulary"),
        ([-1], [-0.1], "id_outside_vocabulary"),
        ([True], [-0.1], "id_outside_vocabulary"),
    ],
)
def test_ids_and_logprobs_that_do_not_line_up_are_refused_with_a_reason(ids, logprobs, reason):
    with pytest.raises(RolloutInvalid) as refused:
        check_sampled(SampledTokens(ids, logprobs, "stop"), vocabulary=10)
    assert refused.value.reason == reason
    settings = ["--env.tokenizer_name"] if reason == "id_outside_vocabulary" else ["--openai.base_url", "server_type"]
    assert all(setting in refused.value.detail for setting in settings)


@pytest.mark.parametrize("finish_reason", ["error", "abort"])
def test_what_the_engine_broke_off_is_refused(finish_reason):
    with pytest.raises(RolloutInvalid, match=f"engine_error: .*{finish_reason}"):
        check_sampled(SampledTokens([1], [-0.1], finish_reason), vocabulary=10)


def test_what_lines_up_is_accepted():
    check_sampled(SampledTokens([0, 9], [0.0, -30.0], "stop"), vocabulary=10)
    check_sampled(SampledTokens([], [], "stop"), vocabulary=10)


token = st.integers(0, 3)
requests = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=6), st.lists(st.lists(token, max_size=3), min_size=1, max_size=3)),
    max_size=8,
)


@settings(deadline=None)
@given(requests)
def test_every_completion_is_found_again_after_exactly_its_prompt(requests):
    graph, expected = TokenGraph(), []
    for prompt, completions in requests:
        nodes = turn(graph, prompt, *(sampled(*ids) for ids in completions))
        expected += [(node, prompt + ids, len(ids)) for node, ids in zip(nodes, completions, strict=True)]
    assert set(graph.sampled_nodes()) == {node for node, _, _ in expected}
    for node, ids, own in expected:
        sequence = sequence_of(node)
        assert sequence.ids == ids
        assert len(sequence.ids) == len(sequence.mask) == len(sequence.logprobs)
        assert sequence.mask[len(ids) - own :] == ids[len(ids) - own :]
        assert all(
            (m == MASKED) == (p == PROMPT_LOGPROB) for m, p in zip(sequence.mask, sequence.logprobs, strict=True)
        )


@settings(deadline=None)
@given(requests)
def test_the_match_is_the_deepest_walk_that_begins_the_prompt(requests):
    graph = TokenGraph()
    for prompt, completions in requests:
        turn(graph, prompt, *(sampled(*ids) for ids in completions))
    for prompt, _ in requests:
        best = graph.longest_match(prompt)
        fits = [n for n in graph.sampled_nodes() if ids_of(n) == prompt[: n.end]]
        assert ids_of(best) == prompt[: best.end]
        assert best.end >= max((n.end for n in fits), default=0)
