"""Pages of groups: everything a model wrote is text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.errors import ConfigError
from atroposlib.frontend.jsonl2html import create_html_for_group, generate_html, get_score_class, main

_OWN_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "details", "summary", "div", "p", "pre", "strong"),
}


class Reader(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(tmp_path: Path, *lines: str) -> Reader:
    source = tmp_path / "groups.jsonl"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Reader(generate_html(source).read_text(encoding="utf-8"))


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)><think>hidden?</think>"


def test_what_a_model_wrote_is_text_and_seen(tmp_path):
    group = {
        "scores": [1.0],
        "messages": [
            [
                {"role": HOSTILE, "content": HOSTILE, "reasoning_content": HOSTILE},
                {"role": "assistant", "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}, HOSTILE]},
                {"role": "user", "content": [{"type": "text", "text": HOSTILE}, {"type": "image_url"}]},
            ]
        ],
    }
    page = page_of(tmp_path, json.dumps(group), json.dumps(HOSTILE), HOSTILE)
    assert page.tags <= _OWN_TAGS
    assert page.text.count("<think>hidden?</think>") >= 6
    assert "[image_url]" in page.text


@given(st.text())
def test_any_text_stays_text(text):
    html = Reader(
        create_html_for_group({"messages": [text, [{"role": text, "content": text}]], "scores": [1, text]}, 0)
    )
    assert html.tags <= _OWN_TAGS


@pytest.mark.parametrize("wrapped", [True, False])
def test_images_in_a_message_are_shown_and_others_never_fetched(tmp_path, wrapped):
    urls = ["data:image/png;base64,AA==", "https://elsewhere.example/x.png", "data:image/svg+xml;base64,AA=="]
    parts = [{"type": "image_url", "image_url": {"url": url} if wrapped else url} for url in urls]
    html = create_html_for_group({"messages": [[{"role": "user", "content": parts}]], "scores": [1]}, 0)
    assert html.count("<img") == 1
    assert urls[0] in html
    assert "elsewhere" not in html
    assert html.count("[image_url]") == 2


def test_groups_are_folded_and_rewards_shown_and_coloured(tmp_path):
    group = {"messages": ["good", "bad", "so so"], "scores": [0.1 + 0.2, -1, 0]}
    text = create_html_for_group(group, 4)
    assert text.startswith("<details>\n<summary>Group 4: rewards 0.3, -1, 0</summary>")
    assert [text.count(f"reward-{kind}") for kind in ("positive", "negative", "zero")] == [1, 1, 1]
    assert get_score_class("none") == ""
    assert create_html_for_group(group, 4, unfolded=True).startswith("<details open>")


def test_conversations_without_a_score_are_left_out(caplog):
    text = create_html_for_group({"messages": ["first", "second"], "scores": [1]}, 0)
    assert "first" in text
    assert "second" not in text
    assert "2 conversations and 1 scores" in caplog.text


@pytest.mark.parametrize("group", [{"messages": [], "scores": []}, {"scores": []}, {}, {"tokens": [1], "scores": [1]}])
def test_a_group_of_nothing_is_nothing(group):
    assert create_html_for_group(group, 0) == ""


def test_a_group_without_messages_says_so(tmp_path):
    page = page_of(tmp_path, json.dumps({"tokens": [[1, 2]], "scores": [1], "messages": None}))
    assert "2 tokens, no messages recorded" in page.text


def test_lines_that_hold_no_group_are_named(tmp_path):
    page = page_of(tmp_path, "{broken", "", json.dumps({"messages": ["fine"], "scores": [1]}), "[1]")
    assert "Line 1 holds no group" in page.text
    assert "Line 4 holds no group" in page.text
    assert "fine" in page.text


def test_an_empty_file_makes_a_page_that_says_so(tmp_path):
    assert "No groups" in page_of(tmp_path).text


def test_a_file_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.jsonl"):
        generate_html(tmp_path / "missing.jsonl", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_names_the_page_or_the_fault(tmp_path, capsys):
    (tmp_path / "groups.jsonl").write_text("")
    main([str(tmp_path / "groups.jsonl"), str(tmp_path / "deep" / "page.html")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "deep" / "page.html")
    with pytest.raises(SystemExit) as exit_:
        main([str(tmp_path / "missing.jsonl")])
    assert exit_.value.code == 2
