"""``run-api``: what it listens on, what it asks for, how it fails."""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from atroposlib.cli.run_api import main, make_app, parse_arguments
from atroposlib.errors import GroupRefused
from tests.atroposlib.api.groups import incoming
from tests.atroposlib.api.serving import ServerProcess


def test_it_listens_on_this_machine_only_unless_told():
    arguments = parse_arguments([])
    assert (arguments.host, arguments.port) == ("127.0.0.1", 8000)


def test_it_serves_with_a_token_from_a_file(tmp_path: Path):
    (tmp_path / "token").write_text("secret\n")
    server = ServerProcess("--token-file", str(tmp_path / "token"), "--store", str(tmp_path / "queue.db"))
    server.start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{server.url}/status")
        request = urllib.request.Request(f"{server.url}/status", headers={"authorization": "Bearer secret"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
    finally:
        server.kill()
    assert (tmp_path / "queue.db").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "0", "--token", ""], "--token: is empty"),
        (["--port", "0", "--token-file", "/nowhere/token"], "--token-file"),
        (["--port", "0", "--store", "/dev/null/queue.db"], "store /dev/null/queue.db"),
        (["--port", "0", "--reload", "--store", "queue.db"], "--reload"),
        (["--token", "a", "--token-file", "b"], "not allowed with"),
        (["--port", "http"], "invalid int"),
        (["--max-body-mb", "0"], "argument --max-body-mb: 0 is less than 1"),
        (["--max-queue-mb", "many"], "argument --max-queue-mb: 'many' is no whole number"),
        (["--port", "99999"], "--port 99999 is no port"),
        (["--host", "no-such-host.invalid"], "cannot listen on no-such-host.invalid:8000"),
    ],
)
def test_wrong_arguments_end_with_2_and_one_message(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("program", ["run_api", "view_run"])
def test_a_port_in_use_ends_with_2_and_one_message(program, capsys):
    main_of_program = importlib.import_module(f"atroposlib.cli.{program}").main
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as exit_:
            main_of_program(["--port", str(port)])
    assert exit_.value.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_server_without_a_traceback(number, code, tmp_path):
    server = ServerProcess(log=tmp_path / "log")
    server.start()
    assert server.process is not None
    server.process.send_signal(number)
    assert server.process.wait(20) == code
    said = (tmp_path / "log").read_text()
    assert f"Serving on {server.url} " in said
    assert "Traceback" not in said


def test_limits_come_from_the_command_line():
    app = make_app(parse_arguments(["--max-queue-mb", "1"]))
    with pytest.raises(GroupRefused, match="more than this server ever holds"):
        app.state.queue.add([incoming(0, sequences=40_000)])


def test_help_needs_no_server():
    command = [sys.executable, "-X", "importtime", "-m", "atroposlib.cli.run_api", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--store" in done.stdout
    assert "fastapi" not in done.stderr
