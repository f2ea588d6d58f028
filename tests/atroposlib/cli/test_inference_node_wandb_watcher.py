"""The watcher of engines logs their health at each new step."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from atroposlib.cli.inference_node_wandb_watcher import health_of, main, wait_for_run, watch
from atroposlib.tracking import Tracker


class Answers(BaseHTTPRequestHandler):
    """An engine that is healthy, and a trajectory server whose run begins and goes on with each question."""

    asked = 0

    def do_GET(self) -> None:
        Answers.asked += 1
        answers = {
            "/health_generate": {},
            "/wandb_info": {"project": "p" if Answers.asked > 1 else None, "group": "g"},
            "/status": {"current_step": Answers.asked // 3},
        }
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    Answers.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Enough(Exception):
    """Ends the watch."""


class Kept(Tracker):
    """Keeps three steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Mapping[str, object]]] = []

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        self.steps.append((step, metrics))
        if len(self.steps) == 3:
            raise Enough


def test_engines_are_healthy_where_they_answer(port):
    assert health_of(2, engines=1, first_port=port) == {"server/server_health_2_0": 1.0}


def test_the_run_is_waited_for(port):
    assert wait_for_run(f"http://127.0.0.1:{port}", pause_s=0)["project"] == "p"


def test_each_step_is_logged_once(port):
    tracker = Kept()
    with pytest.raises(Enough):
        watch(f"http://127.0.0.1:{port}", tracker, node=0, engines=0, pause_s=0)
    assert [step for step, _ in tracker.steps] == [1, 2, 3]


def test_engines_of_more_gpus_than_a_node_has_are_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["--api_addr", "http://127.0.0.1:9", "--tp", "16", "--node_num", "0"])
    assert "--tp" in capsys.readouterr().err
