"""The searching that remembers finds what searching anew finds."""

import re

from hypothesis import given
from hypothesis import strategies as st

from atroposlib.tool_call_parsers.seeker import Seeker

PATTERNS = [re.compile(pattern) for pattern in ("a", "ab", r"b(?=\s*a)", r"a\s*b", r"(?:ab)+", r"\Z")]


@given(
    text=st.text(alphabet="ab ", max_size=30),
    asked=st.lists(st.tuples(st.sampled_from(range(len(PATTERNS))), st.integers(0, 30)), max_size=20),
)
def test_any_order_of_questions_gives_the_answers_of_searching_anew(text, asked):
    seeker = Seeker(text)
    for number, start in asked:
        at = min(start, len(text))
        found = text.find("ab", at)
        assert seeker.find("ab", at) == (len(text) if found < 0 else found)
        match, anew = seeker.search(PATTERNS[number], at), PATTERNS[number].search(text, at)
        assert (match and match.span()) == (anew and anew.span())
        assert seeker.start_of(PATTERNS[number], at) == (anew.start() if anew else len(text))


def test_a_stretch_without_hits_is_searched_once():
    class Counting(str):
        searches = 0

        def find(self, *args):
            self.searches += 1
            return super().find(*args)

    text = Counting("x" * 1000 + "mark" + "x" * 1000)
    seeker = Seeker(text)
    assert {seeker.find("mark", start) for start in range(1001)} == {1000}
    assert {seeker.find("mark", start) for start in range(1001, 2004)} == {2004}
    assert text.searches == 2
