"""A network of its own with nothing but the loopback interface: all ports are free in it, and no hub is there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_network() -> Iterator[list[str]]:
    """Words to put before a command, so that it runs in that network."""
    read_end, write_end = os.pipe()
    holder = subprocess.Popen(
        ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--info-fd", str(write_end), "cat"],
        stdin=subprocess.PIPE,
        pass_fds=[write_end],
    )
    os.close(write_end)
    with os.fdopen(read_end) as info, holder:
        pid = str(json.load(info)["child-pid"])
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        yield ["nsenter", "--target", pid, "--net", *user, "--"]
        assert holder.stdin is not None
        holder.stdin.close()
