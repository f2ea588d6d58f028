"""Reading answers out of text, and comparing them."""

from __future__ import annotations

import string
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.reward_fns.answers.choices import chosen_letter, is_choice, letter_of
from atroposlib.envs.reward_fns.answers.comparison import as_formula, decided
from atroposlib.envs.reward_fns.answers.extraction import boxes, final_answer, last_number, marked_answer, tagged
from atroposlib.envs.reward_fns.answers.mathematics import settle
from atroposlib.envs.reward_fns.answers.numbers import number, quantity, same_quantity
from atroposlib.envs.reward_fns.answers.plain_text import plain
from atroposlib.envs.reward_fns.answers.thoughts import parted

# --- where the answer stands ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{5}", ["5"]),
        (r"\boxed{\frac{1}{2}} and \fbox{ x }", [r"\frac{1}{2}", "x"]),
        (r"\boxed {a{b{c}}d}", ["a{b{c}}d"]),
        (r"\boxed 7, \boxed-3.5 and \boxed\pi", ["7,", "-3.5", r"\pi"]),
        (r"\boxed{\boxed{5}}", [r"\boxed{5}", "5"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{[0, 1\}}", [r"[0, 1\}"]),
        (r"\boxed{5", []),
        (r"} \boxed{5} }", ["5"]),
        (r"\unboxed{5}", []),
    ],
)
def test_boxes_are_read_with_their_braces_balanced(text, found):
    assert boxes(text) == found


@given(st.recursive(st.text(string.ascii_letters + " ", max_size=5), lambda inner: inner.map(lambda t: "{" + t + "}")))
def test_whatever_is_balanced_comes_out_of_a_box_as_it_went_in(content):
    assert boxes(rf"so \boxed{{{content}}} indeed") == [content.strip()]


@given(st.text(alphabet="\\boxed{}fb $\n", max_size=60))
def test_no_text_breaks_the_reading_of_boxes(text):
    assert all(content in text for content in boxes(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer>5</answer>", ["5"]),
        ("<ANSWER>5</Answer> <answer>6</answer>", ["5", "6"]),
        ("<answer>5", []),
        ("5</answer>", []),
        ("<answer>no, <answer>6</answer>", ["6"]),
        ("<answer></answer>", [""]),
    ],
)
def test_tags_are_read_without_regard_to_case(text, found):
    assert tagged(text, "answer") == found


@pytest.mark.parametrize(
    ("text", "answer", "where"),
    [
        (r"first \boxed{4}, no: \boxed{5}", "5", r"in the last \boxed{}"),
        (r"\boxed{5} #### 6", "5", r"in the last \boxed{}"),
        ("1 + 1 = 2\n#### 2", "2", "after the last ####"),
        ("#### 1\n#### 2\nok", "2", "after the last ####"),
        ("<answer> 42 </answer>", "42", "in the last <answer>"),
        ("<answer>The answer is 42.</answer>", "42", "said to be the answer"),
        ("The answer is 42.", "42", "said to be the answer"),
        ("The final answer is: **3.5**. Done", "3.5", "said to be the answer"),
        ("Answer: B", "B", "said to be the answer"),
        ("**Answer:** 7\n", "7", "said to be the answer"),
        ("the answer is 5. No: the answer is 6", "6", "said to be the answer"),
        ("the answer is thus equal to 6", "6", "said to be the answer"),
        ("The answer is 7, not 8.", "7", "said to be the answer"),
        ("The answer is 3,000 apples, and not 300.", "3,000 apples", "said to be the answer"),
        ("The answer is $7$ rather than $8$.", "$7$", "said to be the answer"),
        ("The answer is x > 2, not 2.", "x > 2, not 2", "said to be the answer"),
        ("$42$", "$42$", "the whole text"),
        ("x = 42", "x = 42", "the whole text"),
        ("we get 3 and then 4 apples", "4", "the last number"),
        ("that is -1,234.5 in the end", "-1,234.5", "the last number"),
        ("which gives 3/4 of it all", "3/4", "the last number"),
        ("about 50% of all people", "50%", "the last number"),
        ("in version v2 we have nothing", "in version v2 we have nothing", "the whole text"),
    ],
)
def test_the_answer_of_a_text_and_where_it_stands(text, answer, where):
    found = final_answer(text)
    assert found is not None
    assert (found.text, found.where) == (answer, where)


def test_an_empty_text_has_no_answer():
    assert final_answer("") is None
    assert final_answer(" \n") is None
    assert marked_answer("just words") is None
    assert last_number("no digits") is None


@given(st.text(max_size=200))
def test_every_text_has_an_answer_that_stands_in_it_or_none(text):
    found = final_answer(text)
    assert found is None or found.text in text


HOSTILE = [
    "\\boxed{" * 50_000,
    "{" * 300_000,
    "<answer>" * 50_000,
    "</answer>" * 50_000,
    "answer is " * 40_000,
    "answer:" + " " * 300_000,
    "####" * 80_000,
    "1," * 150_000,
    "9" * 300_000,
    "-" * 300_000,
    "\\text{" * 50_000,
    "\\boxed{" + "(" * 300_000 + "}",
    "\\boxed" + " " * 300_000,
    "(A) " * 80_000,
    "<think>" * 50_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:10])
def test_no_text_takes_long_to_read(text):
    began = time.process_time()
    found = final_answer(text)
    if found is not None:
        assert decided(found.text, "5", 1e-6) is not True
    chosen_letter(text, "ABCD")
    parted(text)
    assert time.process_time() - began < 3


# --- numbers ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("1,234,567", 1234567),
        ("1 234 567", 1234567),
        ("1,23", None),
        ("12,34,567", None),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-0.50", Fraction(-1, 2)),
        ("1e-6", Fraction(1, 10**6)),
        (r"3 \times 10^8", 3 * 10**8),
        (r"1.5\cdot10^{-3}", Fraction(3, 2000)),
        ("3*10**2", 300),
        ("1e999999", None),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"\frac34", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\frac{1,000}{4}", 250),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"-1\frac{1}{2}", Fraction(-3, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("1/0", None),
        (r"\frac{x}{2}", None),
        ("", None),
        ("-", None),
        (".", None),
        ("five", None),
        ("1.2.3", None),
        ("9" * 1000, None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert number(text) == (None if value is None else Fraction(value))


@given(st.integers(-(10**12), 10**12))
def test_integers_are_read_however_they_are_grouped(value):
    assert number(str(value)) == number(f"{value:,}") == number(f"{value:,}".replace(",", " ")) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_decimals_are_read_exactly(value):
    assert number(format(value, "f")) == Fraction(value)


@given(st.fractions(max_denominator=9999))
def test_fractions_are_read_in_text_and_in_latex(value):
    over, under = value.numerator, value.denominator
    assert number(f"{over}/{under}") == number(rf"\frac{{{over}}}{{{under}}}") == value


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_numbers(text):
    found = quantity(plain(text))
    assert found is None or isinstance(found.value, Fraction)


@given(st.fractions(), st.fractions(), st.floats(1e-9, 0.1))
def test_sameness_of_numbers_is_symmetric_and_includes_equals(left, right, tolerance):
    one, other = quantity(str(left)), quantity(str(right))
    assert one is not None
    assert other is not None
    assert same_quantity(one, one, tolerance)
    assert same_quantity(one, other, tolerance) == same_quantity(other, one, tolerance)


# --- sameness ---

SAME = [
    ("−5", "-5"),
    ("1,234", "1234"),
    ("1{,}234", "1234"),
    ("10\\%", "10"),
    ("10%", "0.1"),
    ("0.1", "10\\%"),
    ("50 percent", "0.5"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("5 apples", "5"),
    ("5\\text{ cm}", "5"),
    ("5m", "5"),
    ("5 km", "5000 m"),
    ("3 hours", "180 minutes"),
    ("5 m/s", "5"),
    ("5 cm^2", "5"),
    ("90^\\circ", "90"),
    ("90°", "90 degrees"),
    ("\\$18.00", "18"),
    ("$18", "18 dollars"),
    ("2.5 million", "2500000"),
    ("2,500,000", "2.5 million"),
    ("two", "Two."),
    ("0.3333333", "1/3"),
    ("(1, 2)", "(1,2)"),
    ("[0,\\infty)", "[0, \\infty )"),
    ("\\text{even}", "even"),
    ("true", "True"),
    ("**Paris**", "paris"),
    ("A", "a"),
]
DIFFERENT = [
    ("5", "-5"),
    ("1234", "1"),
    ("20%", "0.1"),
    ("5cm", "5 m"),
    ("5 kg", "5 m"),
    ("1000001", "1000000"),
    ("0", "0.0000001"),
    ("1e-9", "2e-9"),
    ("0.33", "1/3"),
    ("no solution", "1"),
    ("Evil, x", "Live, x"),
    ("12", "twelve"),
    ("the number of apples is 5", "5"),
    ("x" * 2000, "5"),
    ("", "5"),
]
MATHEMATICS = [
    ("x^2+2x+1", "(x+1)^2", True),
    ("x+1", "x-1", False),
    ("-x", "x", False),
    ("\\sqrt{2}", "1.41421356", True),
    ("\\sqrt{2}", "1.41", False),
    ("sqrt(2)/2", "\\frac{1}{\\sqrt2}", True),
    ("2^{10}", "1024", True),
    ("7!", "5040", True),
    ("2π", "2\\pi", True),
    ("pi/2", "\\frac{\\pi}{2}", True),
    ("ln(2)", "\\ln 2", True),
    ("2 pi", "2", False),
    ("2xy", "2", False),
    ("3 x", "3", False),
    ("5", "5m", False),
    ("10 and 20", "10", False),
    ("10 and 20", "10, 20", True),
    ("5 or 6", "6,5", True),
    ("x=1 or x=2", "1,2", True),
    ("1,2", "2", False),
    ("2", "1,2", False),
    ("3,14", "3.14", False),
    ("\\{1,2\\}", "2,1", True),
    ("(1,2)", "(2,1)", False),
    ("(0,1)", "[0,1)", False),
    ("\\pm 3", "3,-3", True),
    ("x>5", "5<x", True),
    ("y=2x+1", "2x+1", True),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", True),
    ("2/0", "1", False),
    ("\\notacommand{", "1", False),
]


@pytest.mark.parametrize(("answer", "truth"), SAME)
def test_the_same_in_other_signs(answer, truth):
    assert decided(answer, truth, 1e-6) is True


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT)
def test_what_is_not_the_same(answer, truth):
    assert decided(answer, truth, 1e-6) is False


def test_the_rest_is_mathematics():
    pytest.importorskip("math_verify")
    undecided = [(a, t, same) for a, t, same in MATHEMATICS if decided(a, t, 1e-6) is None]
    assert len(undecided) > 20
    assert {(a, t): decided(a, t, 1e-6) for a, t, _ in MATHEMATICS if decided(a, t, 1e-6) is not None} == {
        (a, t): same for a, t, same in MATHEMATICS if (a, t, same) not in undecided
    }
    settled = settle([(as_formula(a), as_formula(t)) for a, t, _ in undecided], 1e-6, 60)
    assert [(a, t, said) for (a, t, _), said in zip(undecided, settled, strict=True)] == undecided


@given(st.text(max_size=60))
def test_everything_is_the_same_as_itself(text):
    assert decided(text, text, 1e-6) is True


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_two_texts_break_the_comparison(answer, truth):
    assert decided(answer, truth, 1e-6) in (True, False, None)
    as_formula(answer)


# --- choices ---


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("B: Paris", "B"),
        ("[C]", "C"),
        (r"\boxed{\text{(D)}}", "D"),
        ("The answer is (A).", "A"),
        ("Answer: **B**", "B"),
        ("I think that it is C.\nBecause of all this, (D)", "D"),
        ("It is not B.\nTherefore option A is the one", "A"),
        ("A is correct", "A"),
        ("#### C", "C"),
        ("a quick brown fox", None),
        ("I have no idea", None),
        ("E", None),
        (r"\boxed{5}", None),
    ],
)
def test_the_letter_that_a_text_chooses(text, letter):
    found = chosen_letter(text, "ABCD")
    assert (found and found.text) == letter


@pytest.mark.parametrize(
    ("gold", "choice"), [("B", True), ("(B)", True), ("b", False), ("x", False), ("AB", False), ("I", True)]
)
def test_a_truth_of_one_capital_letter_is_a_choice(gold, choice):
    assert is_choice(gold) is choice


@given(st.text(max_size=100))
def test_no_text_breaks_the_reading_of_letters(text):
    assert letter_of(text) is None or len(str(letter_of(text))) == 1
    found = chosen_letter(text, "ABCD")
    assert found is None or found.text in "ABCD"
