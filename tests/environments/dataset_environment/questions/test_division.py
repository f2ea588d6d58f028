from hypothesis import given
from hypothesis import strategies as st

from environments.dataset_environment.questions.division import first_of_each, hold_out, shuffled

keys = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=40)


@given(keys, st.integers(0, 50), st.integers(0, 3))
def test_no_question_is_on_both_sides_and_no_side_is_emptied(keys, most, seed):
    kept, held_out = hold_out(keys, most, seed)
    assert {keys[i] for i in kept}.isdisjoint(keys[i] for i in held_out)
    assert kept
    assert len(held_out) <= most
    assert bool(held_out) == (most > 0 and len(set(keys)) > 1)
    assert {keys[i] for i in kept + held_out} == set(keys)
    assert (kept, held_out) == hold_out(keys, most, seed)


def test_another_seed_holds_out_others():
    assert hold_out(range(1000), 10, 0)[1] != hold_out(range(1000), 10, 1)[1]


@given(keys)
def test_a_question_that_stands_twice_is_asked_once(keys):
    places = first_of_each(keys, set("abc"))
    asked = [keys[place] for place in places]
    assert len(asked) == len(set(asked))
    assert set(asked) == set(keys) & set("abc")


@given(st.integers(0, 200), st.integers(0, 5), st.integers(0, 5))
def test_an_order_holds_every_number_once_and_depends_on_seed_and_epoch_alone(count, seed, epoch):
    assert sorted(shuffled(count, seed, epoch)) == list(range(count))
    assert shuffled(count, seed, epoch) == shuffled(count, seed, epoch)


def test_epochs_have_different_orders():
    assert shuffled(100, 0, 0) != shuffled(100, 0, 1)
