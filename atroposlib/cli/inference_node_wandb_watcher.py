"""``inference-node-wandb-watcher``: track which engines of this machine are healthy, in the run of the trainer.

Once a minute the engines at the ports 9000, 9001, … (8 divided by --tp of them) are asked; whenever the trainer has
made a step, ``server/server_health_<node>_<engine>`` is logged as 1 or 0.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from atroposlib.flag_parser import FlagParser
from atroposlib.tracking import Tracker, make_tracker

logger = logging.getLogger(__name__)

_FIRST_PORT = 9000
_GPUS = 8
_TIMEOUT_S = 10.0


def health_of(node: int, engines: int, first_port: int = _FIRST_PORT) -> dict[str, float]:
    """Ask each engine for its health."""
    return {
        f"server/server_health_{node}_{i}": float(_answers(f"http://localhost:{first_port + i}/health_generate"))
        for i in range(engines)
    }


def wait_for_run(api: str, pause_s: float = 1.0) -> Mapping[str, Any]:
    """Return project and group of the trainer's run, once there is one."""
    while True:
        info: dict[str, Any] | None = _read(f"{api}/wandb_info")
        if info and info["project"] is not None:
            return info
        logger.info("waiting for a trainer at %s", api)
        time.sleep(pause_s)


def watch(api: str, tracker: Tracker, node: int, engines: int, pause_s: float = 60.0) -> None:
    """Log the engines' health at each new step, for ever."""
    last_step = 0
    while True:
        health = health_of(node, engines)
        status = _read(f"{api}/status")
        if status and status["current_step"] > last_step:
            last_step = status["current_step"]
            tracker.log(health, step=last_step)
        time.sleep(pause_s)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _read(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command until interrupted."""
    parser = FlagParser(prog="inference-node-wandb-watcher", description=__doc__.split("\n")[0])
    parser.add_argument("--api_addr", required=True, help="URL of the trajectory server")
    parser.add_argument("--tp", type=int, required=True, help="GPUs of one engine")
    parser.add_argument("--node_num", type=int, required=True, help="number of this machine")
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.tp <= _GPUS:
        parser.error(f"--tp: 1 to {_GPUS}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    api = arguments.api_addr.rstrip("/")
    run = wait_for_run(api)
    name = f"inf_node_{arguments.node_num}"
    tracker = make_tracker("wandb", f"runs/{name}", project=run["project"], group=run["group"], name=name)
    try:
        with suppress(KeyboardInterrupt):  # the way in which it is ended
            watch(api, tracker, arguments.node_num, _GPUS // arguments.tp)
    finally:
        tracker.finish()


if __name__ == "__main__":
    main()
