"""Every import path, signature and default that environments written for Atropos rely on."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

PATHS = {
    "atroposlib.envs.base": [
        "APIServer",
        "APIServerConfig",
        "BaseEnv",
        "BaseEnvConfig",
        "EvalHandlingEnum",
        "Item",
        "OpenaiConfig",
        "ScoredDataGroup",
        "ScoredDataItem",
        "ServerBaseline",
    ],
    "atroposlib.type_definitions": [
        "AgentHistory",
        "AgentStep",
        "Content",
        "EvaluationConfigGeneral",
        "EvaluationMetrics",
        "EvaluationResults",
        "EvaluationSample",
        "GameHistory",
        "GameStep",
        "Item",
        "Message",
        "Observation",
        "UUID",
        "number",
    ],
    "atroposlib.envs.constants": ["ENV_NAMESPACE", "NAMESPACE_SEP", "OPENAI_NAMESPACE"],
    "atroposlib.envs.eval": ["EvalBase", "eval_runner", "evaluate_log", "pass_at_k"],
    "atroposlib.envs.teacher_distillation_env": ["TeacherDistillationConfig", "TeacherDistillationEnv"],
    "atroposlib.envs.reward_fns": ["CombinedReward", "RewardFunction", "registry"],
    "atroposlib.envs.reward_fns.registry": ["RewardRegistry", "registry"],
    "atroposlib.envs.reward_fns.reward_function": ["RewardFunction"],
    "atroposlib.envs.reward_fns.combined_reward": ["CombinedReward"],
    "atroposlib.envs.reward_fns.accuracy_reward": ["AccuracyReward"],
    "atroposlib.envs.reward_fns.format_reward": ["FormatReward"],
    "atroposlib.envs.server_handling.server_baseline": [
        "APIServer",
        "APIServerConfig",
        "ReasoningConfig",
        "ServerBaseline",
    ],
    "atroposlib.envs.server_handling.server_manager": ["APIServerConfig", "ServerManager", "ServerManagerConfig"],
    "atroposlib.envs.server_handling.openai_server": ["APIServerConfig", "OpenAIServer", "resolve_openai_configs"],
    "atroposlib.envs.server_handling.vllm_server": ["VLLMServer"],
    "atroposlib.envs.server_handling.sglang_server": ["SGLangServer"],
    "atroposlib.envs.server_handling.trl_vllm_server": ["TrlVllmServer"],
    "atroposlib.envs.server_handling.managed_server": [
        "DummyManagedServer",
        "ManagedServer",
        "ManagedServerAdapter",
        "SequenceNode",
    ],
    "atroposlib.envs.server_handling.server_harness": [
        "ServerHarness",
        "create_chat_completion",
        "create_completion",
    ],
    "atroposlib.api": ["app"],
    "atroposlib.api.server": ["app"],
    "atroposlib.api.utils": [
        "find_groups_summing_to_target",
        "grab_batch_with_minimum_allocations",
        "grab_exact_from_heterogeneous_queue",
    ],
    "atroposlib.frontend.jsonl2html": ["create_html_for_group", "generate_html"],
    "atroposlib.utils.advantages": [
        "allclose_to_first",
        "compute_discounted_returns",
        "compute_grpo_process_supervision_advantages",
        "compute_stats",
    ],
    "atroposlib.utils.best_of_n_selection": ["select_best_index"],
    "atroposlib.utils.cli": [
        "adjust_model_defaults",
        "extract_namespace",
        "get_double_dash_flags",
        "get_prefixed_pydantic_model",
        "merge_dicts",
    ],
    "atroposlib.utils.display": ["display_metrics_table"],
    "atroposlib.utils.force_diverse_samples": ["generate_with_diverse_first_tokens"],
    "atroposlib.utils.io": ["parse_http_response"],
    "atroposlib.utils.message_history_utils": [
        "ensure_trajectory_token_limit",
        "strip_thinking",
        "truncate_thinking",
    ],
    "atroposlib.utils.metrics": ["get_std_min_max_avg"],
    "atroposlib.utils.tokenize_for_trainer": ["tokenize_for_trainer", "tokenize_for_trainer_dpo"],
    "atroposlib.utils.tokenizers.qwen_fixed_tokenizer": ["QwenFixedTokenizer"],
    "atroposlib.utils.tool_call_parser": ["extract_tool_call", "parse_tool_call"],
    "atroposlib.cli.dpo": ["main"],
    "atroposlib.cli.inference_node_wandb_watcher": ["main"],
    "atroposlib.cli.run_api": ["main"],
    "atroposlib.cli.sft": ["main"],
    "atroposlib.cli.view_run": ["main"],
    "atroposlib.cli.view_run_multimodal": ["main"],
}

SIGNATURES = {
    "atroposlib.envs.base:BaseEnv.__init__": "self config server_configs slurm testing",
    "atroposlib.envs.base:BaseEnv.evaluate_log": "self metrics task_name model_name start_time end_time "
    "generation_parameters samples verbose",
    "atroposlib.envs.base:BaseEnv.handle_send_to_api": "self scored_data item do_send_to_api "
    "abort_on_any_max_length_exceeded",
    "atroposlib.envs.base:BaseEnv.collect_trajectories": "self item",
    "atroposlib.envs.base:BaseEnv.collect_trajectory": "self item",
    "atroposlib.envs.base:BaseEnv.postprocess_histories": "self trajectories",
    "atroposlib.envs.base:BaseEnv.wandb_log": "self wandb_metrics",
    "atroposlib.envs.base:BaseEnv.create_rollout_table": "self wandb_metrics",
    "atroposlib.envs.base:BaseEnv.add_rollouts_for_wandb": "self scored_data item",
    "atroposlib.envs.base:BaseEnv.save_checkpoint": "self step data",
    "atroposlib.envs.base:BaseEnv.perf_stats": "self metrics_dict",
    "atroposlib.envs.eval:evaluate_log": "metrics eval_dir task_name model_name start_time end_time "
    "generation_parameters samples verbose",
    "atroposlib.envs.eval:EvalBase.__init__": "self pass_at_n pass_at_n_samples",
    "atroposlib.envs.eval:pass_at_k": "m c k",
    "atroposlib.envs.server_handling.server_manager:ServerManager.__init__": "self configs server_class slurm testing "
    "max_n_completions reasoning_config proxy_url use_proxy tool_parser",
    "atroposlib.envs.server_handling.server_manager:ServerManager.managed_server": "self tokenizer base_url "
    "preserve_think_blocks",
    "atroposlib.envs.server_handling.openai_server:resolve_openai_configs": "default_server_configs "
    "openai_config_dict yaml_config cli_passed_flags logger",
    "atroposlib.utils.tokenize_for_trainer:tokenize_for_trainer": "tokenizer chat include_messages "
    "train_on_all_assistant_turns finish_reason",
    "atroposlib.utils.tool_call_parser:parse_tool_call": "response available_tools preferred_tags",
    "atroposlib.utils.message_history_utils:truncate_thinking": "response_text tokenizer max_think_tokens",
    "atroposlib.utils.message_history_utils:ensure_trajectory_token_limit": "trajectory tokenizer "
    "max_trajectory_tokens",
    "atroposlib.utils.best_of_n_selection:select_best_index": "primary_scores secondary_scores "
    "primary_higher_is_better secondary_lower_is_better",
    "atroposlib.utils.advantages:compute_grpo_process_supervision_advantages": "rewards gamma std_tol",
    "atroposlib.utils.advantages:allclose_to_first": "values rtol atol equal_nan return_vector",
    "atroposlib.utils.io:parse_http_response": "resp logger",
    "atroposlib.envs.reward_fns.reward_function:RewardFunction.__init__": "self weight name",
}

METHODS = {
    "atroposlib.envs.base:BaseEnv": [
        *("add_rollouts_for_wandb", "add_train_workers", "cleanup", "cli", "collect_trajectories"),
        *("collect_trajectory", "config_init", "create_rollout_table", "env_manager", "env_step_checks", "evaluate"),
        *("evaluate_log", "evaluate_manager", "get_next_item", "get_server_info", "handle_env", "handle_send_to_api"),
        *("load_checkpoint", "perf_stats", "postprocess_histories", "process_manager", "register_env"),
        *("save_checkpoint", "setup", "setup_wandb", "wandb_log"),
    ],
    "atroposlib.envs.server_handling.server_manager:ServerManager": [
        *("chat_completion", "completion", "dedicated_server", "get_logprobs", "managed_server"),
        *("tokens_and_logprobs_completion", "update_weight", "wait_for_sem"),
    ],
    "atroposlib.envs.server_handling.server_harness:ServerHarness": [
        *("conv_to_dictkey", "set_desired_completion", "set_desired_response", "set_tokens_and_logprobs_response"),
    ],
    "atroposlib.envs.server_handling.managed_server:ManagedServer": [
        *("chat_completion", "completion", "get_state", "reset"),
    ],
    "atroposlib.envs.reward_fns.registry:RewardRegistry": [
        *("create", "get", "list", "list_registered", "load_required_functions", "register", "register_function"),
    ],
    "atroposlib.envs.reward_fns.reward_function:RewardFunction": [
        *("__call__", "compute", "get_content", "log_metrics", "set_wandb_logger"),
    ],
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "atroposlib.envs.base:BaseEnvConfig": {
        "group_size": 4,
        "max_num_workers": -1,
        "max_eval_workers": 16,
        "max_num_workers_per_node": 8,
        "steps_per_eval": 100,
        "max_token_length": 2048,
        "eval_limit_ratio": 0.5,
        "inference_weight": 1.0,
        "batch_size": -1,
        "max_batches_offpolicy": 3,
        "tokenizer_name": "NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        "use_wandb": True,
        "rollout_server_url": "http://localhost:8000",
        "total_steps": 1000,
        "wandb_name": None,
        "num_rollouts_to_keep": 32,
        "num_rollouts_per_group_for_logging": 1,
        "ensure_scores_are_not_same": True,
        "data_path_to_save_groups": None,
        "data_dir_to_save_evals": None,
        "min_items_sent_before_logging": 2,
        "include_messages": False,
        "min_batch_allocation": None,
        "worker_timeout": 600,
        "thinking_mode": False,
        "reasoning_effort": None,
        "max_reasoning_tokens": None,
        "custom_thinking_prompt": None,
    },
    "atroposlib.envs.base:ServerBaseline": {
        "timeout": 1200,
        "num_max_requests_at_once": 512,
        "num_requests_for_eval": 64,
        "model_name": "default",
        "rolling_buffer_length": 1000,
        "server_type": "openai",
        "tokenizer_name": "none",
    },
    "atroposlib.envs.base:APIServerConfig": {
        "api_key": "",
        "base_url": "",
        "n_kwarg_is_ignored": False,
        "health_check": True,
    },
    "atroposlib.envs.server_handling.server_manager:ServerManagerConfig": {
        "slurm": False,
        "testing": False,
        "max_n_completions": 8,
        "proxy_url": None,
    },
    "atroposlib.envs.teacher_distillation_env:TeacherDistillationConfig": {
        "teacher_enabled": False,
        "teacher_top_k": 0,
    },
}


def find(path: str) -> Any:
    """The object of ``module:name.name``."""
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", [f"{module}:{name}" for module, names in PATHS.items() for name in names])
def test_a_path_leads_to_what_it_always_did(path):
    assert find(path) is not None


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_signature_begins_with_the_parameters_it_always_had(path):
    expected = SIGNATURES[path].split()
    parameters = list(inspect.signature(find(path)).parameters)
    assert parameters[: len(expected)] == expected


@pytest.mark.parametrize(("path", "names"), METHODS.items())
def test_a_class_has_the_methods_it_always_had(path, names):
    assert [name for name in names if not callable(getattr(find(path), name, None))] == []


@pytest.mark.parametrize(("path", "defaults"), DEFAULTS.items())
def test_a_setting_has_the_default_it_always_had(path, defaults):
    settings = find(path)()
    assert {name: getattr(settings, name) for name in defaults} == defaults


_COMMANDS = {
    "atropos-dpo-gen": "atroposlib.cli.dpo:main",
    "atropos-grpo": "example_trainer.grpo:main",
    "atropos-grpo-run": "example_trainer.run:main",
    "atropos-sft-gen": "atroposlib.cli.sft:main",
    "inference-node-wandb-watcher": "atroposlib.cli.inference_node_wandb_watcher:main",
    "run-api": "atroposlib.cli.run_api:main",
    "view-run": "atroposlib.cli.view_run:main",
    "view-run-multimodal": "atroposlib.cli.view_run_multimodal:main",
}


def test_every_command_is_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert _COMMANDS.items() <= project["scripts"].items()


@pytest.mark.parametrize(("command", "target"), _COMMANDS.items())
def test_every_command_shows_its_flags(command, target, monkeypatch, capsys):
    module, _, function = target.partition(":")
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as end:
        getattr(importlib.import_module(module), function)()
    assert not end.value.code
    assert "usage: " in capsys.readouterr().out


def test_old_names_are_the_same_objects():
    base = importlib.import_module("atroposlib.envs.base")
    baseline = importlib.import_module("atroposlib.envs.server_handling.server_baseline")
    manager = importlib.import_module("atroposlib.envs.server_handling.server_manager")
    wire = importlib.import_module("atroposlib.wire")
    assert base.OpenaiConfig is base.APIServerConfig is baseline.APIServerConfig is manager.APIServerConfig
    assert base.ServerBaseline is baseline.ServerBaseline
    assert base.ScoredDataGroup is wire.ScoredDataGroup


def test_eval_handling_has_its_three_words():
    kinds = find("atroposlib.envs.base:EvalHandlingEnum")
    assert {kind.name: kind.value for kind in kinds} == {
        "STOP_TRAIN": "STOP_TRAIN",
        "LIMIT_TRAIN": "LIMIT_TRAIN",
        "NONE": "NONE",
    }


def test_a_group_is_made_empty_and_filled():
    group = find("atroposlib.envs.base:ScoredDataGroup")()
    group["tokens"] = [[1]]
    group["anything_of_the_environment"] = 1
    assert group == {"tokens": [[1]], "anything_of_the_environment": 1}


def test_a_managed_server_takes_a_tool_call_parser():
    managed_server = find("atroposlib.envs.server_handling.server_manager:ServerManager.managed_server")
    assert "tool_call_parser" in inspect.signature(managed_server).parameters


_HEAVY = ("torch", "transformers", "openai", "datasets", "docker", "wandb", "fastapi", "numpy")
_IMPORT_ALL = """
import importlib, sys
for module in {modules!r}:
    before = set(sys.modules)
    importlib.import_module(module)
    loaded = [name for name in {heavy!r} if name in sys.modules and name not in before]
    if loaded:
        print(module, "imports", *loaded)
"""


def test_importing_loads_nothing_heavy_and_says_nothing():
    light = [module for module in PATHS if module != "atroposlib.api.server"]
    script = _IMPORT_ALL.format(modules=light, heavy=_HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
