"""What can be had from the Hugging Face Hub: its own clients try for long before they say that it cannot be reached."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

REACH_S = 5.0
"""How long the hub may take to answer at all."""


def hub_answers(endpoint: str) -> bool:
    """Whether ``endpoint`` answers within ``REACH_S`` seconds; name resolution, which knows no time limit, included."""
    import urllib.error
    import urllib.request

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


def is_only_here(name: str) -> bool:
    """Whether a model can only be on this machine: it is a folder, or the hub does not answer."""
    if _means_a_folder(name):
        return True
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and not hub_answers(constants.ENDPOINT)


def why_absent(name: str) -> str | None:
    """Why a model cannot be had, and what to do; None where it is a folder, or cached, or the hub can be asked."""
    if Path(name).expanduser().is_dir():
        return None
    if _means_a_folder(name):
        return f"{name} is no folder"
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
    except HFValidationError as error:
        return f"{name} is neither a folder of {Path.cwd()} nor a name of the hub: {error}"
    if not constants.HF_HUB_OFFLINE and hub_answers(constants.ENDPOINT):
        return None
    return (
        f"{name} is neither a folder of {Path.cwd()} nor in the cache, and the hub cannot be asked. "
        f"`hf download {name} --local-dir {name}` gets it where there is a network"
    )


def _means_a_folder(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).is_dir()
