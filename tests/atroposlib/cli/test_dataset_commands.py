"""``atropos-sft-gen``, ``atropos-dpo-gen`` and ``view-run`` against a real server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atroposlib.api.incoming import parse_group
from atroposlib.api.server import create_app
from atroposlib.cli import dpo, sft
from atroposlib.cli.dataset_file import open_output
from atroposlib.cli.dpo import pairs_of_group
from atroposlib.cli.group_source import GroupSource, Run
from atroposlib.cli.sft import best_of_group
from atroposlib.cli.view_run import Viewer, create_view
from atroposlib.errors import ConfigError
from tests.atroposlib.api.groups import registration, scored_group
from tests.atroposlib.api.serving import ServerProcess, serving


class Letters:
    """Decodes 0 as a, 1 as b, …"""

    def decode(self, token_ids: Any) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


def group(scores: list[float], messages: bool = False) -> Any:
    tokens = [[0, 1, 2, 3 + i] for i in range(len(scores))]
    masks = [[-100, -100, *row[2:]] for row in tokens]
    said = [[{"role": "assistant", "content": f"m{i}"}] for i in range(len(scores))]
    return {"tokens": tokens, "masks": masks, "scores": scores, "messages": said if messages else None}


# --- one group ---


def test_the_best_are_saved_as_prompt_and_completion():
    assert best_of_group(group([0.5, 1.0, 0.25, -1.0]), Letters(), most=2) == [
        {"prefix": "ab", "completion": "ce", "score": 1.0},
        {"prefix": "ab", "completion": "cd", "score": 0.5},
    ]


@pytest.mark.parametrize(
    ("options", "scores"),
    [
        ({}, [1.0, 0.5]),
        ({"allow_negative_scores": True}, [1.0, 0.5, 0.0, -1.0]),
        ({"minimum_score_difference": 1.5}, [1.0]),
        ({"allow_negative_scores": True, "minimum_score_difference": 1.0}, [1.0, 0.5]),
    ],
)
def test_what_is_saved_depends_on_scores(options, scores):
    assert [line["score"] for line in best_of_group(group([0.0, 1.0, -1.0, 0.5]), Letters(), 9, **options)] == scores


def test_messages_are_saved_where_asked_and_there():
    assert best_of_group(group([1.0], messages=True), None, most=3) == [
        {"messages": [{"role": "assistant", "content": "m0"}], "score": 1.0}
    ]
    with pytest.raises(ConfigError, match="include_messages"):
        best_of_group(group([1.0]), None, most=3)


def test_prompts_that_differ_share_what_they_share():
    odd = group([1.0, 1.0])
    odd["tokens"][1][1] = 9
    assert [line["prefix"] for line in best_of_group(odd, Letters(), 2)] == ["a", "a"]


def test_pairs_are_the_best_with_the_worst_and_use_none_twice():
    assert pairs_of_group(group([0.2, 1.0, 0.0, 0.9]), Letters(), most=3) == [
        {"prefix": "ab", "pos": "ce", "neg": "cf", "score": 1.0},
        {"prefix": "ab", "pos": "cg", "neg": "cd", "score": 0.9},
    ]
    (pair,) = pairs_of_group(group([1.0, 0.0], messages=True), None, most=3)
    assert pair == {
        "pos": [{"role": "assistant", "content": "m0"}],
        "neg": [{"role": "assistant", "content": "m1"}],
        "score": 1.0,
    }


@pytest.mark.parametrize(
    ("scores", "options", "pairs"),
    [
        ([1.0, 1.0], {}, 0),
        ([-1.0, -2.0], {}, 0),
        ([-1.0, -2.0], {"allow_negative_scores": True}, 1),
        ([1.0, 0.5], {"minimum_score_difference": 0.5}, 0),
        ([1.0], {}, 0),
    ],
)
def test_only_pairs_that_differ_are_saved(scores, options, pairs):
    assert len(pairs_of_group(group(scores), Letters(), 3, **options)) == pairs


# --- the commands ---


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    server = ServerProcess()
    server.start()
    yield server
    server.kill()


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def post_when_registered(url: str) -> None:
    """Post groups as soon as the run that a command registers is there."""
    while ask(f"{url}/info")["batch_size"] == -1:
        time.sleep(0.05)
    for i in range(16):
        ask(f"{url}/scored_data", group([1.0 + i, 0.0], messages=True))


@pytest.mark.parametrize(("command", "key"), [(sft, "messages"), (dpo, "pos")])
def test_a_command_fills_its_file_in_order_and_appends_if_asked(tmp_path, server, command, key):
    path = tmp_path / "folder" / "data.jsonl"
    flags = [str(path), "--api-url", server.url, "--save-messages", "--num-seqs-to-save", "5"]
    if command is sft:
        flags += ["--tasks-per-step", "2"]
    poster = threading.Thread(target=post_when_registered, args=[server.url])
    poster.start()
    command.main(flags)
    poster.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["score"] for line in lines] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(line[key] for line in lines)

    with pytest.raises(SystemExit) as exit_:
        command.main(flags)
    assert exit_.value.code == 2
    assert len(path.read_text().splitlines()) == 5


def test_groups_of_which_no_line_is_saved_are_explained_and_ctrl_c_leaves_no_empty_file(tmp_path, server):
    path = tmp_path / "data.jsonl"
    words = ["-m", "atroposlib.cli.dpo", str(path), "--api-url", server.url, "--save-messages"]
    words += ["--minimum-score-diff-max-min", "99"]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as command:
        post_when_registered(server.url)
        said = command.stderr.readline()
        command.send_signal(signal.SIGINT)
        said += command.stderr.read()
    assert command.returncode == 130
    assert "0 of 100 lines saved: none of these 8 groups will do. Their best score is 8;" in said
    assert "at most 8 apart (--minimum-score-diff-max-min is 99)" in said
    assert "Traceback" not in said
    assert not path.exists()


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (sft, "--save-top-n-per-group"),
        (sft, "--tasks-per-step"),
        (sft, "--num-seqs-to-save"),
        (dpo, "--save-n-pairs-per-group"),
        (dpo, "--group-size"),
        (dpo, "--max-token-len"),
    ],
)
def test_a_number_that_would_save_nothing_is_refused(command, flag, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main([str(tmp_path / "data.jsonl"), flag, "0"])
    assert exit_.value.code == 2
    assert f"argument {flag}: 0 is less than 1" in capsys.readouterr().err
    assert not (tmp_path / "data.jsonl").exists()


@pytest.mark.parametrize("command", [sft, dpo])
def test_a_file_that_is_there_stops_the_command_before_it_touches_the_server(tmp_path, command, capsys):
    path = tmp_path / "data.jsonl"
    path.write_text("mine\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        with pytest.raises(SystemExit) as exit_:
            command.main([str(path), "--api-url", f"http://127.0.0.1:{listener.getsockname()[1]}"])
        assert exit_.value.code == 2
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert "--append-to-previous" in capsys.readouterr().err
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--save-messages"], "start one with run-api"),
        (["--tokenizer", "/no/such/tokenizer"], "no tokenizer '/no/such/tokenizer': set --tokenizer to"),
        (["--save-messages", "--api-token-env", "NO_SUCH_VARIABLE_HERE"], "NO_SUCH_VARIABLE_HERE is not set"),
        (["--num-seqs-to-save", "0"], "less than 1"),
    ],
)
def test_what_is_wrong_is_said_and_no_empty_file_stays(tmp_path, flags, complaint, capsys):
    path = tmp_path / "data.jsonl"
    with pytest.raises(SystemExit) as exit_:
        sft.main([str(path), "--api-url", "http://127.0.0.1:9", *flags])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not path.exists()


# --- the page ---

_RUN = Run("view-run", group_size=2, groups_per_batch=1, max_token_len=512, num_steps=10)


async def page_after_next(url: str) -> str:
    """What the page of ``view-run`` shows after one click."""
    source = GroupSource(url)
    view = create_view(Viewer(source, _RUN, tokenizer="/no/such/tokenizer"), source)
    async with serving(view) as page, aiohttp.ClientSession(page) as http:
        async with http.get("/") as answer:
            assert answer.status in (200, 502), await answer.text()
        async with http.post("/next") as answer:
            return await answer.text()


async def test_where_no_trainer_is_the_page_takes_batches():
    app = create_app()
    async with serving(app) as url:
        app.state.queue.add(_incoming(group([1.0, 0.0], messages=True)))
        text = await page_after_next(url)
        assert "m0" in text
        assert app.state.queue.info()["batch_size"] == 2
        assert app.state.queue.status()["queue_size"] == 0


async def test_beside_a_trainer_the_page_only_looks():
    app = create_app()
    async with serving(app) as url:
        app.state.queue.register(registration())
        app.state.queue.add(_incoming(group([1.0, 0.0], messages=True)))
        assert "m0" in await page_after_next(url)
        assert "Step 0, 1 groups waiting" in await page_after_next(url)
        assert app.state.queue.info()["batch_size"] == 4


async def test_without_a_server_the_page_says_what_to_start():
    assert "start one with run-api" in await page_after_next("http://127.0.0.1:9")


async def test_groups_without_messages_are_shown_even_without_a_tokenizer():
    app = create_app()
    async with serving(app) as url:
        app.state.queue.register(registration())
        app.state.queue.add(_incoming(scored_group(0)))
        assert "3 tokens, no messages recorded" in await page_after_next(url)


def _incoming(body: Any) -> Any:
    return parse_group(json.dumps(body).encode())


def test_paths_are_made(tmp_path: Path):
    with open_output(tmp_path / "a" / "b.jsonl", append=False) as file:
        file.write("x")
    with pytest.raises(ConfigError, match="cannot write"):
        open_output(tmp_path / "a", append=True)
