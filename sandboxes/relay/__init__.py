"""A port inside a box whose connections end at one place outside, for a box that has no network.

A small static program in the box (``src/relay.c``) listens on the box's loopback and carries what comes over its
standard streams (``Sandbox.pipe``); ``open_relay`` is its other end. Nothing in the box can reach anything but what
``connect`` opens, and nothing outside can reach into the box.
"""

from sandboxes.relay.host import Connect, open_relay

__all__ = ["Connect", "open_relay"]
