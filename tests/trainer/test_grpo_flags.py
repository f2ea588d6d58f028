"""What the command lines accept, and how they refuse."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from example_trainer.grpo import EXAMPLE_MODEL
from tests.trainer.tiny_model import save_policy
from trainer import cli, grpo, serve
from trainer.config import TrainerConfig


def _config(*flags: str, aliases: tuple[str, ...] = ()) -> TrainerConfig:
    return grpo.config_from(grpo.make_parser("test").parse_args(flags), aliases)


def _refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What is said on stderr where the trainer ends with exit code 2."""
    try:
        code = grpo.main(["--port", "0", *flags])  # any other port may be in use here
    except SystemExit as end:  # argparse
        code = end.code
    assert code == 2
    return capsys.readouterr().err


def test_flags_of_atropos_are_understood() -> None:
    config = _config(
        *("--model-name", "m", "--lr", "1e-4", "--training-steps", "7", "--batch-size", "3"),
        *("--gradient-accumulation-steps", "5", "--seq-len", "99", "--save-path", "out", "--checkpoint-interval", "2"),
        *("--vllm-port", "9100", "--atropos-url", "http://h:1", "--weight-bridge-mode", "none", "--use-wandb"),
        *("--warmup-steps", "4", "--clip-eps", "0.1", "--vllm-restart-interval", "6", "--benchmark"),
    )
    assert (config.model, config.lr, config.training_steps, config.seq_len) == ("m", 1e-4, 7, 99)
    assert config.sequences_per_step == 15
    assert (config.serving.port, config.serving.names) == (9100, ("m",))
    assert (config.publish_interval, config.warmup_steps, config.clip_eps) == (6, 4, 0.1)
    assert (config.save_path, config.use_wandb) == (Path("out"), True)


def test_flag_without_effect_says_so(caplog: pytest.LogCaptureFixture) -> None:
    _config("--debug-loading")
    assert "--benchmark and --debug-loading have no effect" in caplog.text


def test_without_flags_the_shipped_policy_is_trained_at_the_usual_addresses() -> None:
    config = _config()
    assert config == TrainerConfig()
    assert (config.model, config.atropos_url) == ("tiny", "http://localhost:8000")
    assert (config.serving.host, config.serving.port, config.serving.names) == ("127.0.0.1", 9001, ("tiny",))


def test_shipped_policy_answers_to_the_examples_model_where_no_other_is_asked_for() -> None:
    aliases = (EXAMPLE_MODEL,)
    assert _config(aliases=aliases).serving.names == ("tiny", EXAMPLE_MODEL)
    assert _config("--served-model-name", "a", "b", aliases=aliases).serving.names == ("a", "b")
    assert _config("--model", "other", aliases=aliases).serving.names == ("other",)


@pytest.mark.parametrize("mode", ["shared_vllm", "lora_only", "lora_restart"])
def test_weight_bridge_modes_that_are_not_here_are_refused_by_name(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--weight-bridge-mode {mode} is not here" in _refusal(capsys, "--weight-bridge-mode", mode)


@pytest.mark.parametrize("flag", ["--lora-r", "--world-size", "--vllm-gpu", "--train-layer-indices"])
def test_flags_that_mean_nothing_here_are_refused_by_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{flag}: " in _refusal(capsys, flag, "1")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--optimizer", "adamw_8bit"], "bitsandbytes"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--seq-len", "-1"], "--seq-len must be at least 0, got -1"),
        (["--warmup-steps", "-3"], "--warmup-steps must be at least 0, got -3"),
        (["--kl-coef", "-0.1"], "--kl-coef must be at least 0, got -0.1"),
        (["--kl-coef", "nan"], "--kl-coef must be at least 0, got nan"),
        (["--distill-coef", "-1"], "--distill-coef must be at least 0, got -1.0"),
        (["--clip-eps-high", "0"], "--clip-eps-high must be above 0, got 0.0"),
        (["--max-logprob-gap", "-1"], "--max-logprob-gap must be above 0, got -1.0"),
        (["--patience-s", "-1"], "--patience-s must be at least 0, got -1.0"),
        (["--lr", "inf"], "--lr must be a finite number, got inf"),
        (["--batch-size", "many"], "invalid int value"),
        (["--lr", "-1"], "--lr must be above 0"),
        (["--dtype", "float16"], "--dtype must be float32 or bfloat16"),
        (["--model", "/nowhere/model"], "--model /nowhere/model: no such folder"),
        (["--resume", "/nowhere/step_1"], "--resume: /nowhere/step_1 is not a checkpoint"),
        (["--atropos-url", "localhost:8000"], "http://"),
        (["--atropos-token-env", "SURELY_NOT_SET"], "SURELY_NOT_SET is not set"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag (--help lists the flags)"),
        (["--trainig-steps", "3"], "unrecognized arguments: --trainig-steps 3; is --training-steps meant?"),
        (["--dtype", "int4"], "--dtype"),
    ],
)
def test_wrong_flag_ends_with_exit_code_two_and_its_name(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert says in _refusal(capsys, *flags, "--save-path", str(tmp_path))


def test_external_engine_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(save_policy(tmp_path / "policy")), "--save-path", str(tmp_path / "run")]
    said = _refusal(capsys, *flags, "--engine-url", "http://127.0.0.1:9")
    assert "--engine-url http://127.0.0.1:9: no engine answers there" in said


def test_dtype_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--model", str(tmp_path), "--port", "0", "--dtype", "int4"]) == 2
    assert "serve: --dtype int4 is not one of float32, bfloat16, float16" in capsys.readouterr().err


@pytest.mark.parametrize("program", [grpo, serve])
def test_missing_pytorch_is_said_with_what_installs_it(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert program.main(["--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "missing packages: torch. Install PyTorch" in said
    assert "pip install 'atroposlib[train]'" in said


def test_what_is_wrong_with_model_or_address_is_said_before_torch_is_loaded() -> None:
    code = (
        "import sys\nfrom trainer import grpo, serve\n"
        "codes = [program.main(['--model', '/nowhere/model']) for program in (grpo, serve)]\n"
        "sys.exit(codes != [2, 2] or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture
def absent_hub(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine without a network, and with an empty cache."""
    own = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    return os.environ | own


@pytest.mark.parametrize("program", ["trainer.grpo", "trainer.serve"])
def test_model_that_cannot_be_had_is_named_within_seconds_and_without_a_network(
    program: str, absent_hub: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--model", "org/absent", "--port", "0"]
    flags += ["--save-path", str(tmp_path / "run")] if program == "trainer.grpo" else []
    run = subprocess.run(
        [sys.executable, "-m", program, *flags], env=absent_hub, capture_output=True, text=True, check=False, timeout=30
    )
    assert run.returncode == 2
    assert run.stderr.startswith(f"python -m {program}: --model org/absent: org/absent is neither a folder of ")
    assert "`hf download org/absent --local-dir org/absent` gets it" in run.stderr
    assert run.stderr.count("\n") == 1


def test_model_of_the_cache_is_loaded_without_waiting_for_an_absent_hub(
    absent_hub: dict[str, str], tmp_path: Path
) -> None:
    snapshot = tmp_path / "hub" / "hub" / "models--org--mine" / "snapshots" / "1"
    save_policy(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1")
    code = "from trainer.policy import check_model, load_policy; check_model('org/mine'); load_policy('org/mine')"
    run = subprocess.run(
        [sys.executable, "-c", code], env=absent_hub, capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(("name", "says"), [("a/b/c", "a/b/c is no folder"), ("no model!", "nor a name of the hub")])
def test_what_is_no_name_of_a_model_is_refused(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in _refusal(capsys, "--model", name)


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "--save-path" in _refusal(capsys, "--save-path", str(tmp_path / "file" / "below"))


def test_device_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_policy(tmp_path / "policy"))
    assert "--device cuda:77" in _refusal(capsys, "--model", model, "--device", "cuda:77", "--save-path", str(tmp_path))


@pytest.mark.parametrize("program", [grpo, serve])
def test_taken_port_is_refused_and_its_owner_left_alone(
    program: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(save_policy(tmp_path / "policy"))
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = str(owner.getsockname()[1])
        flags = ["--model", model, "--port", port]
        flags += ["--save-path", str(tmp_path / "run")] if program is grpo else []
        assert program.main(flags) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_unknown_tool_call_parser_is_refused_with_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_policy(tmp_path / "policy"))
    assert serve.main(["--model", model, "--port", "0", "--tool-call-parser", "nonsense"]) == 2
    assert "hermes" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["example_trainer.grpo", "example_trainer.run"])
def test_faces_of_atropos_refuse_under_their_own_name(program: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", program, "--lora-r", "4"], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 2
    assert run.stderr.startswith(f"python -m {program}: --lora-r: LoRA is not here")


def test_help_needs_no_torch() -> None:
    programs = "trainer.grpo, trainer.serve, example_trainer.grpo, example_trainer.run"
    code = f"import sys, {programs}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
