"""Replacements and patches, as pure text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.base import ToolFailure
from environments.tools.edits import FileChange, parse_patch, replace_text

LINES = st.lists(
    st.text(st.characters(codec="ascii", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e"), max_size=8),
    min_size=1,
    max_size=8,
)


def test_one_occurrence_is_replaced():
    assert replace_text("a b c", "b", "x", everywhere=False) == "a x c"


def test_two_occurrences_are_refused_unless_all_are_meant():
    with pytest.raises(ToolFailure, match="stands 2 times"):
        replace_text("b b", "b", "x", everywhere=False)
    assert replace_text("b b", "b", "x", everywhere=True) == "x x"


def test_white_space_is_forgiven_where_the_text_is_not_found_exactly():
    text = "def f():\n    return  1   \n\nprint(f())\n"
    assert replace_text(text, "return 1", "return 2", everywhere=False) == "def f():\nreturn 2\n\nprint(f())\n"


def test_what_stands_nowhere_is_told():
    with pytest.raises(ToolFailure, match="not found"):
        replace_text("abc\n", "xyz", "1", everywhere=False)


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a")])
def test_a_replacement_of_nothing_is_refused(old, new):
    with pytest.raises(ToolFailure):
        replace_text("a", old, new, everywhere=False)


def test_blank_lines_are_no_place_to_replace():
    with pytest.raises(ToolFailure, match="not found"):
        replace_text("a\n\nb\n", "  \n", "x", everywhere=False)


@given(LINES, st.data())
def test_replacing_one_line_changes_nothing_else(lines, data):
    spot = data.draw(st.integers(0, len(lines) - 1))
    lines[spot] = "THE LINE"
    text = "\n".join(lines) + "\n"
    expected = "\n".join([*lines[:spot], "new", *lines[spot + 1 :]]) + "\n"
    assert replace_text(text, "THE LINE", "new", everywhere=False) == expected


PATCH = """*** Begin Patch
*** Update File: app.py
@@ def second():
-    return 1
+    return 2
*** Add File: notes/new.txt
+hello
+world
*** Delete File: old.txt
*** End Patch"""


def test_a_patch_updates_adds_and_deletes():
    update, add, delete = parse_patch(PATCH)
    before = "def first():\n    return 1\n\ndef second():\n    return 1\n"
    assert update.change(before).after == "def first():\n    return 1\n\ndef second():\n    return 2\n"
    assert add.change(None) == FileChange("notes/new.txt", None, "hello\nworld\n")
    assert delete.change("x").after is None


def test_hunks_apply_one_after_the_other():
    (edit,) = parse_patch("*** Begin Patch\n*** Update File: a\n@@\n-x\n+1\n@@\n-x\n+2\n*** End Patch")
    assert edit.change("x\ny\nx\n").after == "1\ny\n2\n"


def test_a_file_without_a_final_newline_keeps_none():
    (edit,) = parse_patch("*** Update File: a\n-x\n+y")
    assert edit.change("x").after == "y"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "changes no file"),
        ("-a\n+b", "begins with"),
        ("*** Move File: a", "Unknown patch header"),
        ("*** Update File: a\nx", "begins with '\\+'"),
        ("*** Update File: a\n*** Update File: a", "twice"),
    ],
)
def test_a_text_that_is_no_patch_is_refused(text, word):
    with pytest.raises(ToolFailure, match=word):
        parse_patch(text)


def test_a_hunk_that_does_not_fit_names_its_lines():
    (edit,) = parse_patch("*** Update File: a\n-not there\n+x")
    with pytest.raises(ToolFailure, match="not there"):
        edit.change("something else\n")
