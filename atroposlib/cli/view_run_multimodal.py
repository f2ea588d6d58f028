"""``view-run-multimodal``: ``view-run`` with the tokenizer of a model that sees; images in messages are shown."""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.cli import view_run


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the page until interrupted."""
    view_run.main(argv, tokenizer="Qwen/Qwen2-VL-2B-Instruct", prog="view-run-multimodal")


if __name__ == "__main__":
    main()
