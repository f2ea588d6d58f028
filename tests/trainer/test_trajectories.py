"""The trainer and a real trajectory server that comes and goes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from atroposlib.wire import Registration
from tests.trainer.services import TrajectoryServer
from trainer import trajectories
from trainer.errors import ServiceError, UsageError
from trainer.http import JsonClient, Refused, Unreachable
from trainer.trajectories import Stopped, TrajectorySource


def _registration(step: int = 0) -> Registration:
    return Registration(
        wandb_group="g", wandb_project="p", batch_size=2, max_token_len=64, checkpoint_dir="here",
        save_checkpoint_interval=1, starting_step=step, num_steps=10,
    )  # fmt: skip


def _post(server: TrajectoryServer, first: int) -> None:
    """A group of two sequences that can be told by its first token."""
    group: dict[str, Any] = {"tokens": [[first, 1], [first, 2]], "masks": [[-100, 1], [-100, 2]], "scores": [0.0, 1.0]}
    JsonClient(server.url).post("/scored_data", group)


def _source(server: TrajectoryServer, **options: Any) -> TrajectorySource:
    return TrajectorySource(JsonClient(server.url), **options)


def _first_tokens(batch: list[Any]) -> list[int]:
    return [group["tokens"][0][0] for group in batch]


def test_batches_come_in_order_one_at_a_time() -> None:
    with TrajectoryServer() as server:
        source = _source(server)
        source.register(_registration())
        for first in (11, 12, 13):
            _post(server, first)
        assert [_first_tokens(source.next_batch(step)) for step in range(3)] == [[11], [12], [13]]


def test_trainer_that_registers_again_gets_the_batch_it_had_not_finished() -> None:
    with TrajectoryServer() as server:
        source = _source(server)
        source.register(_registration())
        _post(server, 11)
        _post(server, 12)
        source.next_batch(0)
        comeback = _source(server)
        comeback.register(_registration())
        assert _first_tokens(comeback.next_batch(0)) == [11]
        assert _first_tokens(comeback.next_batch(1)) == [12]


def test_while_no_batch_comes_it_is_said_how_much_of_one_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(trajectories, "_SAY_AFTER_S", 0.0)
    with TrajectoryServer() as server:
        source = _source(server)
        source.register(_registration().model_copy(update={"batch_size": 6}))
        _post(server, 11)
        threading.Timer(1.0, source.stop.set).start()
        with pytest.raises(Stopped):
            source.next_batch(0)
    assert "The server says: 2 of 6 sequences of a batch wait; 0 environments" in caplog.text


def test_server_that_forgot_everything_is_registered_with_again(caplog: pytest.LogCaptureFixture) -> None:
    server = TrajectoryServer()
    with server:
        source = _source(server)
        source.register(_registration())
        _post(server, 11)
        source.next_batch(0)
    with server:
        _post(server, 12)
        assert _first_tokens(source.next_batch(1)) == [12]
        assert JsonClient(server.url).get("/status").body["current_step"] == 2
    assert "registering again" in caplog.text


def test_server_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    server = TrajectoryServer(store=tmp_path / "queue.sqlite")
    with server:
        source = _source(server)
        source.register(_registration())
        _post(server, 11)
        _post(server, 12)
        source.next_batch(0)
    comeback = threading.Timer(0.5, server.start)
    comeback.start()
    try:
        assert _first_tokens(source.next_batch(1)) == [12]
    finally:
        comeback.join()
        server.stop()


def test_server_that_stays_away_is_an_error_that_names_the_flag() -> None:
    server = TrajectoryServer()
    with pytest.raises(ServiceError, match=r"has not answered.*--atropos-url"):
        _source(server, patience_s=0.2).register(_registration())


def test_wait_for_a_batch_ends_on_request() -> None:
    with TrajectoryServer() as server:
        source = _source(server)
        source.register(_registration())
        threading.Timer(0.2, source.stop.set).start()
        with pytest.raises(Stopped):
            source.next_batch(0)


def test_refusal_is_raised_at_once_with_what_the_server_says() -> None:
    with TrajectoryServer(token="secret") as server:
        with pytest.raises(Refused, match="401"):
            _source(server).register(_registration())
        TrajectorySource(JsonClient(server.url, token="secret")).register(_registration())


def test_what_is_no_trajectory_server_is_an_error_that_names_the_flag() -> None:
    with TrajectoryServer() as server:
        source = TrajectorySource(JsonClient(f"{server.url}/elsewhere"))
        with pytest.raises(UsageError, match=r"--atropos-url: what answers there is no trajectory server .*404"):
            source.register(_registration())


def test_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="http://"):
        JsonClient("localhost:8000")


def test_nobody_at_an_address_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="GET http://127"):
        JsonClient(TrajectoryServer().url).get("/status")
