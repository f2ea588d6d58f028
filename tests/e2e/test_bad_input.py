"""Whatever a user gets wrong: one clear message that names what to change, and exit code 2."""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.programs import environment, make_folder, message, module, run
from tests.environments.agent_engine import AgentEngine, serving_in_a_thread
from tests.environments.conftest import require

LONGEST_MESSAGE = 3
"""Lines. More is no message but a dump."""
NO_DOCKER = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
SERVER = "atroposlib.cli.run_api"
TRAINER, ENGINE = "trainer.grpo", "trainer.serve"
DATA = "environments.dataset_environment.dataset_env"
QUICKSTART = "environments.local_run.quickstart"


@dataclass(frozen=True)
class Case:
    """``{url}``, ``{port}`` and ``{tokenizer}`` in a command stand for an engine's, a taken port, a tokenizer."""

    command: list[str]
    says: str
    variables: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with some things in it that are not what they should be."""
    folder = make_folder(tmp_path_factory.mktemp("user") / "work")
    (folder / "file").write_text("no folder")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "nothing.jsonl").touch()
    (folder / "broken.yaml").write_text("env: [1,\n")
    (folder / "unknown.yaml").write_text("env:\n  group_sise: 3\n")
    source = (folder / "environments" / "my_env.py").read_text()
    empty = source.replace("for _ in range(120)]", "for _ in range(0)]")
    assert empty != source
    (folder / "environments" / "empty_env.py").write_text(empty)
    return folder


@pytest.fixture(scope="module")
def engines():
    """An engine of one model, one of two and one of none, by name."""
    single, several, none = AgentEngine(), AgentEngine(), AgentEngine()
    several.models, none.models = ["first", "second"], []
    with serving_in_a_thread(single) as one, serving_in_a_thread(several) as two, serving_in_a_thread(none) as zero:
        yield {"one": one, "two": two, "none": zero}


def refused(case: Case, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command ends as it should."""
    ended = run(case.command, folder, case.variables)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    said = message(ended.stderr)
    assert case.says in " ".join(said)
    assert 1 <= len(said) <= LONGEST_MESSAGE, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


# flags and files, for which nothing has to be started

AT_ONCE = {
    "unknown flag": Case(environment("process", "--env.group_sise", "3"), "is --env.group_size meant?"),
    "wrong type": Case(environment("process", "--env.group_size", "many"), "--env.group_size: "),
    "no value": Case(environment("process", "--env.group_size"), "--env.group_size needs a value (int)"),
    "config is not there": Case(environment("process", "--config", "no.yaml"), "--config no.yaml: No such file"),
    "config is no YAML": Case(environment("serve", "--config", "broken.yaml"), "broken.yaml is not YAML: line 2"),
    "unknown key": Case(environment("evaluate", "--config", "unknown.yaml"), "env.group_sise; is group_size"),
    "no URL": Case(environment("process", "--openai.base_url", "http://h:99999"), "--openai.base_url: 'http://h:99999"),
    "key is not set": Case(
        environment("process", "--openai.base_url", "http://h:1", "--openai.api_key_env", "NO_SUCH_KEY"), "NO_SUCH_KEY"
    ),
    "unknown backend": Case(
        environment("process", "--env.terminal_backend", "modal"), "known are auto, docker, bubblewrap, local"
    ),
    "unknown toolset": Case(environment("process", "--env.enabled_toolsets", "web9"), "Unknown toolset 'web9'"),
    "unknown reward": Case(
        module(DATA, "process", "--env.dataset_path", "file", "--env.reward_functions", "nope"),
        "no reward function 'nope'; there are accuracy",
    ),
    "two sources of tools": Case(
        environment("process", "--env.distribution", "terminal_only"),
        "--env.distribution: distribution and enabled_toolsets exclude each other: leave one out by "
        "--env.enabled_toolsets None",
    ),
    "unknown parser": Case(environment("process", "--env.tool_call_parser", "x"), "unknown tool_call_parser 'x'"),
    "groups cannot be written": Case(
        environment("process", "--env.data_path_to_save_groups", "file/below.jsonl"), "--env.data_path_to_save_groups: "
    ),
    "results cannot be written": Case(
        environment("evaluate", "--env.data_dir_to_save_evals", "file/below"), "--env.data_dir_to_save_evals: "
    ),
    "one address for two": Case(
        environment("serve", "--openai.base_url", "http://localhost:8000/v1"), "--env.rollout_server_url"
    ),
    "store is no file": Case(module(SERVER, "--port", "0", "--store", "file/below"), "store file/below"),
    "no such model": Case(module(ENGINE, "--model", "/nowhere/model"), "--model /nowhere/model: no such folder"),
    "no model in the folder": Case(module(TRAINER, "--model", "environments"), "holds no model"),
    "mode that is not here": Case(module(TRAINER, "--weight-bridge-mode", "shared_vllm"), "shared_vllm is not here"),
    "flag that is not here": Case(module(TRAINER, "--lora-r", "8"), "--lora-r: LoRA is not here"),
    "unknown flag of the trainer": Case(module(TRAINER, "--trainig-steps", "1"), "is --training-steps meant?"),
    "trainer, wrong number": Case(module(TRAINER, "--training-steps", "0"), "--training-steps must be at least 1"),
    "trainer, no URL": Case(
        module(TRAINER, "--atropos-url", "nonsense"), "--atropos-url: 'nonsense' is not an address"
    ),
    "trainer, no folder": Case(
        module(TRAINER, "--model", "nope/nope"), "--model nope/nope: nope/nope is neither a folder of"
    ),
    "quickstart, backend": Case(module(QUICKSTART, "--backend", "nope"), "--backend nope: no"),
    "quickstart, model": Case(module(QUICKSTART, "--model", "/nowhere"), "--model /nowhere: no such folder"),
    "quickstart, folder": Case(
        module(QUICKSTART, "--backend", "local", "--model", "model", "--folder", "file/below"),
        "--folder: cannot write to",
    ),
    "new, existing file": Case(module("environments.new", "my_env"), "environments/my_env.py exists"),
    "new, no name": Case(module("environments.new", "My-Env"), "is no name for an environment"),
    "images without Docker": Case(module("sandboxes.images", "build"), "no Docker daemon at", NO_DOCKER),
    "images, unknown name": Case(module("sandboxes.images", "build", "nope"), "there are bookworm, busybox"),
    "images without debootstrap": Case(
        module("sandboxes.images", "build", "bookworm", "--root", "root"), "debootstrap is not", {"PATH": "/nowhere"}
    ),
}


@pytest.mark.parametrize("case", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_mistake_is_named_at_once(case, folder):
    refused(case, folder)


@pytest.mark.parametrize("program", [SERVER, ENGINE, TRAINER])
def test_a_port_in_use_is_named(program, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(Case(module(program, "--port", str(port)), f"cannot listen on 127.0.0.1:{port}"), folder)


# credentials in URLs

CREDENTIALS = "http://user:PWSECRET@h:1/v1"
URLS_THAT_HOLD_CREDENTIALS = {
    "engine": (environment("evaluate", "--openai.base_url", CREDENTIALS), "--openai.base_url holds a user name"),
    "engine, the way out": (environment("serve", "--openai.base_url", CREDENTIALS), "--openai.api_key_env names"),
    "engine, no scheme": (environment("process", "--openai.base_url", "PWSECRET@h:1"), "--openai.base_url holds"),
    "engine, wrong port": (environment("process", "--openai.base_url", "http://u:PWSECRET@h:x"), "--openai.base_url"),
    "engine, in a file": (environment("process", "--config", "credentials.yaml"), "--openai.base_url holds"),
    "judge": (environment("process", "--env.judge_base_url", CREDENTIALS), "--env.judge_api_key_env names"),
    "queue": (environment("serve", "--env.rollout_server_url", CREDENTIALS), "--env.rollout_server_token_env names"),
    "capture proxy": (environment("process", "--proxy_url", CREDENTIALS), "--proxy_url holds a user name"),
    "queue of the trainer": (module(TRAINER, "--atropos-url", CREDENTIALS), "--atropos-token-env names"),
    "queue, no scheme": (module(TRAINER, "--atropos-url", "u:PWSECRET@h:1"), "--atropos-url holds a user name"),
    "engine of the trainer": (module(TRAINER, "--engine-url", CREDENTIALS), "--engine-url holds a user name"),
}


@pytest.mark.parametrize(
    ("command", "says"), URLS_THAT_HOLD_CREDENTIALS.values(), ids=URLS_THAT_HOLD_CREDENTIALS.keys()
)
def test_credentials_in_a_url_are_refused_and_repeated_nowhere(command, says, folder):
    (folder / "credentials.yaml").write_text(f"openai:\n- base_url: {CREDENTIALS}\n- base_url: http://h:2\n")
    ended = refused(Case(command, says), folder)
    (folder / "credentials.yaml").unlink()
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert "PWSECRET" not in ended.stdout + ended.stderr
    assert b"PWSECRET" not in written


# engines

BOXLESS = ("--env.terminal_backend", "local", "--env.use_wandb", "false")


def test_an_engine_that_is_not_there_is_named(folder):
    words = ("evaluate", "--openai.base_url", "http://127.0.0.1:9", "--openai.wait_s", "1", *BOXLESS)
    refused(
        Case(environment(*words), "http://127.0.0.1:9/v1 within 1 s; start it, or correct --openai.base_url"), folder
    )


@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        ("two", (), "choose with --openai.model_name: first, second"),
        ("none", (), "serves no model"),
    ],
)
def test_a_model_that_is_missing_is_named(engine, words, says, folder, engines):
    command = environment("process", "--openai.base_url", engines[engine], *BOXLESS, *words)
    refused(Case(command, says), folder)


@pytest.mark.parametrize("mode", ["process", "evaluate", "serve"])
def test_a_tokenizer_that_is_not_found_is_named_before_anything_starts(mode, folder, engines):
    words = (mode, "--openai.base_url", engines["one"], "--env.tokenizer_name", "./nowhere", *BOXLESS)
    refused(Case(environment(*words), "no tokenizer './nowhere': set --env.tokenizer_name"), folder)


# boxes and items


def with_engine(mode: str, url: str, *words: str) -> list[str]:
    known = ("--openai.base_url", url, "--env.tokenizer_name", "tokenizer", "--env.use_wandb", "false")
    return environment(mode, *known, *words)


UNFIT_BOXES = [
    (("bubblewrap", "--env.sandbox_network", "bridge"), "bubblewrap boxes have no network of the machine; set --env."),
    (
        ("local", "--env.sandbox_network", "pypi.org"),
        "sandbox_network names hosts, to which local boxes cannot be held",
    ),
    (("auto", "--env.sandbox_network", "bridge"), "terminal_backend 'auto': no Docker daemon at"),
    (("auto", "--env.docker_image", "some:image"), "terminal_backend 'auto': no Docker daemon at"),
]


@pytest.mark.parametrize(("words", "says"), UNFIT_BOXES)
def test_what_a_backend_cannot_give_is_named_before_the_first_rollout(words, says, folder, engines):
    command = with_engine("process", engines["one"], "--env.terminal_backend", *words)
    refused(Case(command, says, NO_DOCKER), folder)


def test_a_capture_proxy_that_is_not_there_is_named(folder, engines):
    words = ("--env.terminal_backend", "local", "--proxy_url", "http://127.0.0.1:9")
    says = "--proxy_url http://127.0.0.1:9: no capture proxy answers there; start it"
    refused(Case(with_engine("process", engines["one"], *words), says), folder)


def test_an_agent_that_asks_its_model_nothing_is_not_taken_for_an_engine_that_fails(folder, engines):
    require("bubblewrap")
    words = ("--env.terminal_backend", "bubblewrap", "--env.agent_command", "true", "--env.total_steps", "1")
    ended = run(with_engine("process", engines["one"], *words), folder)
    assert ended.returncode == 1
    told = "agent_command asked its model nothing; it ended with 0: no output"
    last = ended.stderr.strip().splitlines()[-1]
    assert re.search(rf"items in a row gave no group: nothing_asked \(\d+\); the last said: {told}$", last)


def test_docker_that_does_not_run_is_named(folder, engines):
    says = "terminal_backend 'docker': no Docker daemon at unix:///nowhere/docker.sock"
    refused(Case(with_engine("process", engines["one"]), says, NO_DOCKER), folder)


@pytest.mark.docker
def test_an_image_that_does_not_exist_is_named(folder, engines):
    require("docker")
    words = ("--env.docker_image", "no-such-image.invalid/x:y", "--env.group_size", "1")
    refused(Case(with_engine("process", engines["one"], *words), "no image no-such-image.invalid/x:y here"), folder)


@pytest.mark.parametrize("mode", ["process", "evaluate"])
def test_a_dataset_without_items_is_named(mode, folder, engines):
    command = with_engine(mode, engines["one"], "--env.terminal_backend", "local")
    command[1] = "environments/empty_env.py"
    refused(Case(command, "MyEnv has no items: its dataset is empty"), folder)


def test_a_data_file_with_nothing_in_it_is_named(folder, engines):
    words = ("process", "--openai.base_url", engines["one"], "--env.tokenizer_name", "tokenizer")
    data = ("--env.dataset_path", "nothing.jsonl", "--env.reward_functions", "accuracy", "--env.use_wandb", "false")
    refused(Case(module(DATA, *words, *data), "nothing.jsonl, split train has no rows"), folder)


def test_nothing_of_all_this_was_written(folder):
    """The last test of this file: mistakes leave no files, save the folders that were asked for."""
    left = {path.name for path in folder.iterdir()} - {"runs", "data"}
    assert left == {"environments", "tokenizer", "model", "file", "nothing.jsonl", "broken.yaml", "unknown.yaml"}
