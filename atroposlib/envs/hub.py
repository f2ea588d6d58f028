"""Whether the Hugging Face Hub can be reached: its own clients try for long before they say that it cannot."""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request

logger = logging.getLogger(__name__)

REACH_S = 5.0
"""How long the hub may take to answer at all."""


def hub_answers(endpoint: str) -> bool:
    """Whether ``endpoint`` answers within ``REACH_S`` seconds; name resolution, which knows no time limit, included."""
    answered: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=REACH_S):
                answered.append(True)
        except urllib.error.HTTPError:
            answered.append(True)
        except OSError as error:
            logger.debug("%s does not answer: %s", endpoint, error)

    thread = threading.Thread(target=ask, name="hub", daemon=True)
    thread.start()
    thread.join(REACH_S)
    return bool(answered)
