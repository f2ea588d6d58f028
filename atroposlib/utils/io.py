"""Read HTTP answers."""

from __future__ import annotations

import logging
from typing import Any


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """Return the JSON of an aiohttp response. What it answers instead is logged, and the error rises.

    Raises: whatever ``raise_for_status`` and ``json`` of the response raise.
    """
    log = logger or logging.getLogger(__name__)
    text = await resp.text()
    try:
        resp.raise_for_status()
        return await resp.json()
    except Exception:
        log.error("HTTP %s instead of JSON: %.1000s", getattr(resp, "status", "?"), text)  # noqa: TRY400  (it rises)
        raise
