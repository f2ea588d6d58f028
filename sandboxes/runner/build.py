"""Build the runner for each architecture: ``python -m sandboxes.runner.build`` (needs ``pip install ziglang``)."""

from sandboxes.runner import RUNNER

if __name__ == "__main__":
    RUNNER.build_all()
