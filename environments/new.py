"""``python -m environments.new my_env``: write an environment that runs, to be changed into one's own."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

TEMPLATE = Template('''\
"""$title: say here what the agent has to do, and how it is judged."""

import random

from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig


class $class_name(HermesAgentBaseEnv):
    name = "$run_name"
    env_config_cls = HermesAgentEnvConfig

    @classmethod
    def config_init(cls):
        config, servers = super().config_init()
        config.enabled_toolsets = ["terminal", "file"]
        config.max_agent_turns = 8
        return config, servers

    async def setup(self):
        """Make or load the items, and keep some for evaluation that are never trained on."""
        numbers = random.Random(self.config.seed)
        items = [{"words": ["word"] * numbers.randint(3, 40)} for _ in range(120)]
        self.eval_items, self.items = items[:20], items[20:]

    async def get_next_item(self):
        """The next item; None when there is none left."""
        item = self.items[self._index % len(self.items)]
        self._index += 1
        return item

    def format_prompt(self, item) -> str:
        return "How many words are in /workspace/notes.txt? Write the number alone into /workspace/answer.txt."

    async def prepare_box(self, item, ctx) -> None:
        """Put into the box what the agent starts from."""
        ctx.write_file("/workspace/notes.txt", " ".join(item["words"]) + "\\n")

    async def compute_reward(self, item, result, ctx) -> float:
        """Judge what is in the box. Raise where it cannot be judged: a failure is not a score of 0."""
        answer = ctx.read_file("/workspace/answer.txt")["content"]
        return 1.0 if answer.strip() == str(len(item["words"])) else 0.0


if __name__ == "__main__":
    $class_name.cli()
''')

NEXT_STEPS = """wrote {path}

try it, with the URL of an engine:
  python {path} process  --env.total_steps 2 --env.group_size 2 --env.use_wandb false \\
      --env.data_path_to_save_groups out.jsonl --openai.base_url http://localhost:9001/v1
  python {path} evaluate --env.eval_size 20 --env.data_dir_to_save_evals results \\
      --openai.base_url http://localhost:9001/v1
"""


def environment_source(name: str) -> str:
    """The file of a new environment called ``name``. Raises: ValueError for what is no name of a module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is no name for an environment: use lower-case letters, digits and _, as in my_env")
    words = name.split("_")
    return TEMPLATE.substitute(
        title=" ".join(words).strip().capitalize(),
        class_name="".join(word.capitalize() for word in words),
        run_name="-".join(filter(None, words)),
    )


def write_environment(name: str, folder: Path) -> Path:
    """Write ``<folder>/<name>.py``. Raises: FileExistsError, ValueError."""
    source = environment_source(name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(source)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)  # what was not written is not in the way of the next try
            raise
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file and say how to run it. Raises: SystemExit (2) where it exists or cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m environments.new", description=__doc__)
    parser.add_argument("name", help="name of the module, such as my_env")
    parser.add_argument("--folder", type=Path, default=Path("environments"), help="where to write it")
    arguments = parser.parse_args(argv)
    try:
        path = write_environment(arguments.name.removesuffix(".py"), arguments.folder)
    except FileExistsError as error:
        parser.error(f"{error.filename} exists; nothing was written. Choose another name, or another --folder")
    except OSError as error:
        parser.error(f"cannot write to {error.filename or arguments.folder}: {error.strerror}")
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(NEXT_STEPS.format(path=path))


if __name__ == "__main__":
    main()
