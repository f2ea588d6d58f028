"""What a forked child must not keep: this side of the wire to a box.

A box ends with its owner since its input does. A child that is forked and runs on, as those of ``multiprocessing`` do,
has copies of all descriptors and would hold that input open beyond the death of the owner. So it lets go of them.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol


class Wire(Protocol):
    """Something with a descriptor of its own."""

    def descriptor(self) -> int:
        """Its number; -1 where it is closed."""
        ...


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


def keep_from_children(wire: Wire) -> None:
    """Children that this process forks from now on have nothing in place of the wire."""
    _watch_forks()
    _wires.add(wire)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for wire in list(_wires):
        descriptor = wire.descriptor()
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)  # a number that is free could become something else
    os.close(nothing)
    _wires.clear()
