"""Numbers on a command line."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse. Raises: ArgumentTypeError, which argparse shows with the flag."""
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
