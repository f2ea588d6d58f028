import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.errors import ConfigError
from environments.dataset_environment.questions.columns import check_field, look_up

ROW = {"a": 1, "meta": {"answer": "42", "list": [{"text": "x"}, {"text": "y"}]}, "meta.answer.raw": "dotted"}

names = st.text("abcdefgh", min_size=1, max_size=4)
trees = st.recursive(
    st.integers(), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1)
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", 1),
        ("meta.answer", "42"),
        ("meta.list.1.text", "y"),
        ("meta.list.-1.text", "y"),
        ("meta.answer.raw", "dotted"),
    ],
)
def test_a_path_leads_to_its_value(path, value):
    assert look_up(ROW, path) == value


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("b", "no column 'b'"),
        ("meta.question", "no 'question' among answer, list"),
        ("meta.list.7", "'7' is no place in a list of 2"),
        ("a.b", "leads into a int"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(path, complaint):
    with pytest.raises(LookupError, match=complaint):
        look_up(ROW, path)


def paths_of(value, path):
    yield path, value
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in steps:
        yield from paths_of(inner, f"{path}.{key}")


@given(st.dictionaries(names, trees, min_size=1, max_size=3))
def test_every_value_of_a_row_has_a_path(row):
    for column, value in row.items():
        for path, expected in paths_of(value, column):
            assert look_up(row, path) == expected


def test_a_wrong_field_is_told_with_the_columns_and_the_nearest_name():
    with pytest.raises(ConfigError) as told:
        check_field("prompt_field", "questoin", ["question", "answer"], {}, "gsm8k, split train")
    assert str(told.value) == (
        "prompt_field: gsm8k, split train has no field 'questoin' (is question meant?). "
        "Its columns are: question, answer"
    )
