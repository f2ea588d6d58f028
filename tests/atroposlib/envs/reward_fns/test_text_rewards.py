"""Rewards that need no right answer: length, reasoning_steps, repetition_penalty, crossword_format, chandas_meter."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.prosody.syllables import as_iast, weights
from atroposlib.errors import ConfigError, RewardError

# --- length ---


def test_length_is_full_up_to_half_and_nothing_at_the_end():
    reward = registry.create({"type": "length", "max_tokens": 100})
    texts = [""] * 5
    assert reward(texts, token_lengths=[0, 50, 75, 100, 500]) == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_length_counts_by_tokens_where_it_can_and_else_by_words():
    reward = registry.create({"type": "length", "max_tokens": 100})
    assert reward.verdicts(["word " * 75])[0].why == "75 words of 100"
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: list(text))
    [verdict] = reward.verdicts(["x" * 75], tokenizer=tokenizer)
    assert (verdict, verdict.why) == (0.5, "75 tokens of 100")


@pytest.mark.parametrize(
    "config", [SimpleNamespace(max_tokens=100), {"max_tokens": 100}, SimpleNamespace(max_token_length=100)]
)
def test_length_takes_its_limit_from_the_config_of_the_call(config):
    assert registry.create("length")(["x"], token_lengths=[75], config=config) == [0.5]


def test_length_without_a_limit_is_an_error():
    with pytest.raises(RewardError, match="max_tokens"):
        registry.create("length")(["x"])
    with pytest.raises(ConfigError, match="1 or more"):
        registry.create({"type": "length", "max_tokens": 0})
    with pytest.raises(RewardError, match="1 right answers for 2"):
        registry.create({"type": "length", "max_tokens": 9})(["x", "y"], token_lengths=[1])


# --- reasoning_steps ---

TEN_WORDS = "a " * 11


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("42", 0.0),
        (TEN_WORDS, 0.1),
        ("Step 1: a\nStep 2: b\nStep 3: c", 0.5),
        ("Step 1: a\nStep 1: a\nStep 1: a", 0.5 / 3),
        ("1. a\n2. b\n3. c", 0.5),
        ("- a\n- b\n* c", 0.4),
        ("- a\n- a\n- a", 0.4 / 3),
        ("First a. Then b. Finally c.", 0.3),
        ("First a. First b. First c.", 0.1),
        ("We then understand, apply and compute", 0.0),
        ("compute compute compute", 0.0),
        ("Step 1: a\n1. b\n- c\n", 1.4 / 3 - 0.0),
        ("Step 1: First a.\n- Step 2\n1. Step 3\n- b\n2. c\n- d\n3. e. Then f. Finally g." + TEN_WORDS, 1.0),
    ],
)
def test_reasoning_steps_counts_different_steps(text, score):
    assert registry.create("reasoning_steps")([text]) == pytest.approx([score])


def test_the_weights_of_reasoning_steps_can_be_set():
    reward = registry.create("reasoning_steps", min_steps=1, base_score=0.0, pattern_weights={"bullet_points": 1.0})
    assert reward(["- a"]) == [1.0]


# --- repetition_penalty ---

VARIED = "The train leaves at noon. Each of the boxes holds seven apples, so that is forty-nine. Nobody paid twice."


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (VARIED, 0.0),
        ("too short", -0.1),
        ("one sentence of more than ten words that does not repeat anything at all", -0.1),
        ("The value is 3.14159 for one circle that nobody will ever have measured in full", -0.1),
        ("We add two and three. We add two and three. It is five then.", -0.6 - 0.4 / 3),
        ("WE ADD two and three. We add two  and three. It is five then.", -0.6 - 0.4 / 3),
        ("the same line again\n" * 20, -0.6 - 0.4 * 19 / 20),
        ("again and again and " * 50, -1.0),
        ("好的我们开始计算。好的我们开始计算。结果是五。", -1.0),
    ],
)
def test_repetition_is_penalized(text, score):
    [verdict] = registry.create("repetition_penalty").verdicts([text])
    if "好" in text:
        assert verdict < -0.1, verdict.why
    else:
        assert verdict == pytest.approx(score), verdict.why


@given(st.text(max_size=400))
def test_the_penalty_is_never_out_of_its_range(text):
    [penalty] = registry.create("repetition_penalty").compute([text])
    assert -1.0 <= penalty <= 0.0


@given(
    st.lists(
        st.sampled_from(["red", "green", "blue", "black", "white", "pink", "grey", "gold"]), min_size=12, max_size=40
    )
)
def test_saying_everything_twice_is_never_better(words):
    reward = registry.create("repetition_penalty")
    once, twice = " ".join(words) + ".", " ".join([*words, *words]) + "."
    assert reward([twice])[0] <= reward([once])[0]


def test_repetition_is_measured_quickly():
    texts = ["word " * 60_000, "a. " * 60_000, "\n".join(map(str, range(60_000)))]
    began = time.process_time()
    registry.create("repetition_penalty").compute(texts)
    registry.create("reasoning_steps").compute([*texts, "- " * 60_000, "1. " * 60_000, "\n" * 100_000, " " * 200_000])
    registry.create("crossword_format").compute([*texts, "1-Across: " * 30_000])
    assert time.process_time() - began < 8


# --- crossword_format ---


@pytest.mark.parametrize(
    ("text", "parameters", "score"),
    [
        ("1-Across: HELLO", {}, 1.0),
        ("1-across: hello\n2-DOWN: new world", {}, 1.0),
        ("1-Across: HELLO, 2-Down: WORLD", {}, 1.0),
        ("1-Across: HELLO 2-Down: WORLD", {}, 1.0),
        ("1-Across: HE77O", {}, 0.0),
        ("1-Across: HELLO, 2-Down: W0RLD", {}, 0.0),
        ("1-Across: HE77O", {"penalize_invalid_chars": False}, 1.0),
        ("1-Across: CAFÉ", {}, 0.0),
        ("1-Across: CAFÉ", {"valid_chars": "ACFÉ"}, 1.0),
        ("1-Across:", {}, 0.0),
        ("Across: HELLO", {}, 0.0),
        ("", {}, 0.0),
        ("1-Across: HELLO", {"reward_value": 0.5}, 0.5),
        ("A1 = HELLO", {"format_patterns": [r"\w\d = \w+"]}, 1.0),
        ("HELLO", {"format_patterns": [r"\w\d = \w+"]}, 0.0),
    ],
)
def test_every_answer_of_a_crossword_is_a_word(text, parameters, score):
    assert registry.create("crossword_format", **parameters)([text]) == [score]


# --- chandas_meter ---

SLOKA = "vāgarthāviva saṃpṛktau vāgarthapratipattaye |\njagataḥ pitarau vande pārvatīparameśvarau ||"
MANDAKRANTA = "कश्चित्कान्ताविरहगुरुणा स्वाधिकारात्प्रमत्तः\nशापेनास्तङ्गमितमहिमा वर्षभोग्येण भर्तुः ।"
INDRAVAJRA = "GGLGGLLGLGG"


def test_syllables_are_weighed_alike_in_both_scripts():
    assert weights(MANDAKRANTA) == weights(as_iast(MANDAKRANTA)) == ["GGGGLLLLLGGLGGLGG"] * 2
    assert as_iast("कश्चित्कान्ताविरहगुरुणा") == "kaścitkāntāvirahaguruṇā"
    assert weights("hello 42 世界\n!\nka") == ["GG", "L"]
    assert weights("42 !") == []


@pytest.mark.parametrize(
    ("text", "meter", "score"),
    [
        (SLOKA, "anustubh", 1.0),
        (SLOKA, "śloka", 1.0),
        (MANDAKRANTA, "mandakranta", 1.0),
        ("<think>a b c</think>" + MANDAKRANTA, "Mandākrāntā", 1.0),
        ("gā gā ga gā gā ga ga gā ga gā gā", "indravajra", 1.0),
        ("gā gā ga gā gā ga ga gā ga gā gā", "tristubh", 1.0),
        ("gā gā ga gā gā ga ga gā ga gā ga", "tristubh", 1.0),
        ("ga gā ga gā gā ga ga gā ga gā gā", "indravajra", 10 / 11),
        ("gā gā ga gā gā", "indravajra", 5 / 11),
        ("42", "tristubh", 0.0),
    ],
)
def test_verses_are_as_good_as_their_syllables_fit(text, meter, score):
    assert registry.create("chandas_meter", meter=meter)([text]) == pytest.approx([score])


def test_prose_keeps_no_metre():
    assert registry.create("chandas_meter")(["This is a line of English prose, and nothing else"])[0] < 0.9


def test_an_unknown_metre_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'limerick' is not known; there are anustubh, .*tristubh"):
        registry.create("chandas_meter", meter="limerick")


@given(st.text(max_size=100))
def test_no_text_breaks_the_scansion(text):
    [share] = registry.create("chandas_meter")([text])
    assert 0.0 <= share <= 1.0
