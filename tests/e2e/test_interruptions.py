"""Ctrl-C while a program still loads what it needs: it ends, and says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.programs import module, run

INTERRUPTED_IMPORT = """
import os, signal, time

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
except KeyboardInterrupt:
    {then}
"""
PROGRAMS = {
    "environment": (["environments.terminal_test_env.terminal_test_env", "process"], "openai", "raise"),
    "server": (["atroposlib.cli.run_api", "--port", "0"], "fastapi", "raise"),
    "viewer": (["atroposlib.cli.view_run", "--port", "0"], "fastapi", "raise"),
    # what torch and transformers import takes an interruption for something that is not installed
    "engine": (["trainer.serve", "--port", "0"], "torch", "raise ImportError('cannot be loaded')"),
    "trainer": (["trainer.grpo", "--port", "0"], "torch", "raise ImportError('cannot be loaded')"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_interrupted_while_it_loads_ends_without_a_word(name: str, tmp_path: Path):
    words, library, then = PROGRAMS[name]
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{library}.py").write_text(INTERRUPTED_IMPORT.format(then=then))
    root = Path(__file__).parents[2]
    ended = run(module(*words), tmp_path, {"PYTHONPATH": f"{tmp_path / 'first'}:{root}"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
