"""Scored groups and registrations for the tests of the trajectory server."""

from __future__ import annotations

from typing import Any

import orjson

from atroposlib.api.incoming import IncomingGroup, parse_group
from atroposlib.wire import EnvRegistration, Registration


def scored_group(first: int = 0, sequences: int = 2, **more: Any) -> dict[str, Any]:
    """A group whose first token is ``first``, so that it is known again."""
    tokens = [[first, 7, 8 + i] for i in range(sequences)]
    return {
        "tokens": tokens,
        "masks": [[-100, 7, 8 + i] for i in range(sequences)],
        "scores": [0.5] * sequences,
        **more,
    }


def incoming(first: int = 0, sequences: int = 2, **more: Any) -> IncomingGroup:
    """The same, as the queue takes it."""
    return parse_group(orjson.dumps(scored_group(first, sequences, **more)))[0]


def firsts(groups: Any) -> list[int]:
    """The first tokens of stored groups or of groups of an answer."""
    return [(g if isinstance(g, dict) else orjson.loads(g.body))["tokens"][0][0] for g in groups]


def registration(**changes: Any) -> Registration:
    """A trainer's registration."""
    fields: dict[str, Any] = {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": 4,
        "max_token_len": 512,
        "checkpoint_dir": "/checkpoints",
        "save_checkpoint_interval": 10,
        "starting_step": 0,
        "num_steps": 100,
    }
    return Registration(**{**fields, **changes})


def env_registration(**changes: Any) -> EnvRegistration:
    """An environment's registration."""
    fields: dict[str, Any] = {"max_token_length": 512, "desired_name": "env", "weight": 1.0, "group_size": 2}
    return EnvRegistration(**{**fields, **changes})
