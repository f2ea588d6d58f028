"""A flag that is misspelled is named, with the one that was meant, by every program."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name", "words", "meant"),
    [
        ("atroposlib.cli.run_api", "run-api", ["--stor", "queue", "--prot", "8001"], "--prot 8001; is --port meant?"),
        ("atroposlib.cli.run_api", "run-api", ["--max_queue_mb=9"], "--max_queue_mb=9; is --max-queue-mb meant?"),
        ("atroposlib.cli.run_api", "run-api", ["-port", "8001"], "-port 8001; is --port meant?"),
        ("atroposlib.cli.view_run", "view-run", ["--tokeniser", "x"], "--tokeniser x; is --tokenizer meant?"),
        ("atroposlib.cli.view_run_multimodal", "view-run-multimodal", ["--prot", "1"], "--prot 1; is --port meant?"),
        ("atroposlib.cli.sft", "atropos-sft-gen", ["a", "--savemessages"], "; is --save-messages meant?"),
        ("atroposlib.cli.dpo", "atropos-dpo-gen", ["a", "--group_size", "4"], "; is --group-size meant?"),
        ("atroposlib.cli.check_tokens", "check_tokens", ["a", "--explian", "4"], "; is --explain meant?"),
        ("environments.local_run.quickstart", "./quickstart", ["--minuets", "4"], "; is --minutes meant?"),
        ("trainer.serve", "python -m trainer.serve", ["--modle", "tiny"], "; is --model meant?"),
        ("atroposlib.cli.run_api", "run-api", ["--surely-none"], "arguments: --surely-none (--help lists the flags)"),
        ("atroposlib.cli.run_api", "run-api", ["stray", "--prot", "1"], "stray --prot 1; is --port meant?"),
        ("atroposlib.cli.run_api", "run-api", ["stray"], "unrecognized arguments: stray (--help lists the flags)"),
    ],
)
def test_a_misspelled_flag_is_named_with_the_one_that_was_meant(module, name, words, meant, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(module).main(words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{name}: unrecognized arguments: ")
    assert meant in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["view-run", "view-run-multimodal"])
def test_the_viewers_know_their_own_names(name, capsys):
    module = importlib.import_module(f"atroposlib.cli.{name.replace('-', '_')}")
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert f"usage: {name} [-h]" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        module.main(["--port", "99999"])
    assert capsys.readouterr().err.startswith(f"{name}: --port 99999 is no port")
