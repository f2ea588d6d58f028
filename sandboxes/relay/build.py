"""Build the relay for each architecture: ``python -m sandboxes.relay.build`` (needs ``pip install ziglang``)."""

from sandboxes.relay.binary import RELAY

if __name__ == "__main__":
    RELAY.build_all()
