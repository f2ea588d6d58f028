"""A JSONL file of scored groups as one HTML page.

    python -m atroposlib.frontend.jsonl2html GROUPS.jsonl [PAGE.html]

The page needs nothing else: no scripts, no other files. Every word of a model stands in it as text, tags included, and
can do nothing.
"""

from __future__ import annotations

import argparse
import html
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }}
summary {{ cursor: pointer; padding: .3rem 0; }}
.item {{ border: 1px solid #ccc; border-left-width: 5px; border-radius: 4px; margin: .6rem 0; padding: .4rem .9rem; }}
.reward-positive {{ border-left-color: #2a8f4a; }}
.reward-negative {{ border-left-color: #b3372f; }}
.reward-zero {{ border-left-color: #b58a00; }}
.role {{ color: #555; font-weight: 600; margin: .6rem 0 .1rem; }}
.text {{ font: inherit; margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }}
.call {{ background: #f4f4f4; font: 13px/1.4 ui-monospace, monospace; padding: .4rem; white-space: pre-wrap; }}
img {{ display: block; max-width: 100%; }}
.note {{ color: #8a4b00; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,")
_FOOT = "</body>\n</html>\n"


def generate_html(input_path: str | Path, output_path: str | Path | None = None) -> Path:
    """Write the page beside the file (``.html``) or where it is wanted; returns where it is.

    Lines that hold no group are named on the page. Raises: ConfigError where a file cannot be read or written.
    """
    source = Path(input_path)
    target = source.with_suffix(".html") if output_path is None else Path(output_path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with source.open(encoding="utf-8", errors="replace") as lines:
            target.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("w", encoding="utf-8") as page:
                page.writelines(_page(source.name, lines))
        os.replace(aside, target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise ConfigError(f"cannot make {target} of {source}: {error.strerror or error}") from error
    return target


def render_page(title: str, body: str) -> str:
    """A whole page around ``body``, which is HTML already; the title is text."""
    return _HEAD.format(title=html.escape(title)) + body + _FOOT


def create_html_for_group(group_data: Mapping[str, Any], index: int, unfolded: bool = False) -> str:
    """One group: its conversations, each with its reward, folded up unless told otherwise. Empty where it holds none.

    Conversations and scores are paired; what has no partner is left out, and logged.
    """
    conversations, scores = _conversations(group_data), list(group_data.get("scores") or [])
    if len(conversations) != len(scores):
        logger.warning("group %d has %d conversations and %d scores", index, len(conversations), len(scores))
    pairs = list(zip(conversations, scores, strict=False))
    if not pairs:
        return ""
    items = "".join(_item(index, number, conversation, score) for number, (conversation, score) in enumerate(pairs))
    rewards = html.escape(", ".join(_number(score) for _, score in pairs))
    state = " open" if unfolded else ""
    return f"<details{state}>\n<summary>Group {index}: rewards {rewards}</summary>\n{items}</details>\n"


def get_score_class(score: Any) -> str:
    """The style of a reward: positive, negative or zero; empty where it is no number."""
    try:
        value = float(score)
    except (TypeError, ValueError):
        return ""
    if value > 0:
        return "reward-positive"
    return "reward-negative" if value < 0 else "reward-zero"


def _page(name: str, lines: Iterator[str]) -> Iterator[str]:
    yield _HEAD.format(title=html.escape(f"Groups of {name}"))
    shown = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        group = _read(line)
        if group is None:
            yield f'<p class="note">Line {number} holds no group: {html.escape(line[:200])}</p>\n'
            continue
        rendered = create_html_for_group(group, shown)
        shown += bool(rendered)
        yield rendered
    if not shown:
        yield "<p>No groups with conversations.</p>\n"
    yield _FOOT


def _read(line: str) -> Mapping[str, Any] | None:
    try:
        group = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return group if isinstance(group, dict) and isinstance(group.get("scores"), list) else None


def _conversations(group: Mapping[str, Any]) -> Sequence[Any]:
    messages = group.get("messages")
    if isinstance(messages, list):
        return messages
    tokens = group.get("tokens")
    rows = [row for row in tokens if isinstance(row, list)] if isinstance(tokens, list) else []
    return [f"({len(row)} tokens, no messages recorded)" for row in rows]


def _item(group: int, number: int, conversation: Any, score: Any) -> str:
    turns = conversation if isinstance(conversation, list) else [conversation]
    return (
        f'<div class="item {get_score_class(score)}" id="group-{group}-item-{number}">\n'
        + "".join(map(_turn, turns))
        + f"<p><strong>Reward:</strong> {html.escape(_number(score))}</p>\n</div>\n"
    )


def _turn(message: Any) -> str:
    if not isinstance(message, dict):
        return _text(str(message))
    role = html.escape(str(message.get("role", "unknown")).capitalize())
    texts = [_content(message[key]) for key in ("reasoning_content", "content") if message.get(key)]
    calls = message.get("tool_calls")
    shown_calls = [_call(call) for call in calls] if isinstance(calls, list) else []
    return f'<p class="role">{role}</p>\n' + "".join([*texts, *shown_calls])


def _text(text: str) -> str:
    return f'<pre class="text">{html.escape(text)}</pre>\n'


def _content(content: Any) -> str:
    """A text, or the parts of a multimodal message: texts, and images that stand in the message itself."""
    if not isinstance(content, list):
        return _text(str(content))
    return "".join(map(_part, content))


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return _text(str(part))
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str) and _IMAGE.match(url):
        return f'<img alt="image" src="{html.escape(url)}">\n'
    return _text(str(part.get("text", f"[{part.get('type', 'part')}]")))


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict):
        text = f"{function.get('name')}({function.get('arguments')})"
    else:
        text = json.dumps(call, ensure_ascii=False)
    return f'<div class="call">{html.escape(text)}</div>\n'


def _number(score: Any) -> str:
    return f"{score:.6g}" if isinstance(score, float) else str(score)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; exits with 2 where a file cannot be read or written."""
    parser = argparse.ArgumentParser(description="Render a JSONL file of scored groups as an HTML page.")
    parser.add_argument("input_path", type=Path)
    parser.add_argument("output_path", type=Path, nargs="?")
    arguments = parser.parse_args(argv)
    try:
        page = generate_html(arguments.input_path, arguments.output_path)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
