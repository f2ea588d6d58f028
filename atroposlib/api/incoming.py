"""A posted body becomes groups that can wait: checked once, then kept as the bytes that a batch is joined from."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from atroposlib.errors import GroupRefused
from atroposlib.wire import GROUP_KEYS, ScoredDataGroup, read_group, read_groups


@dataclass(frozen=True)
class IncomingGroup:
    """A group that is well formed. ``body`` is a JSON object with all of ``GROUP_KEYS``."""

    sequences: int
    env_id: int | None
    group_id: str | None
    run_id: str | None
    body: bytes = field(repr=False)


def parse_group(body: bytes) -> list[IncomingGroup]:
    """Read the body of POST /scored_data. Raises: GroupRefused."""
    return [_pack(read_group(body))]


def parse_groups(body: bytes) -> list[IncomingGroup]:
    """Read the body of POST /scored_data_list. Raises: GroupRefused, for all if one is at fault."""
    return [_pack(group) for group in read_groups(body)]


def _pack(group: ScoredDataGroup) -> IncomingGroup:
    try:
        body = orjson.dumps({key: group.get(key) for key in GROUP_KEYS})
    except orjson.JSONEncodeError as error:  # integers beyond 64 bits or nesting without end, inside free-form values
        raise GroupRefused(f"body: cannot be passed on as JSON: {error}") from None
    return IncomingGroup(
        sequences=len(group["tokens"]),
        env_id=group.get("env_id"),
        group_id=group.get("group_id"),
        run_id=group.get("run_id"),
        body=body,
    )
