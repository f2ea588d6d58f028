"""Finding and loading the model that is served and trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.hub import is_only_here, why_absent
from trainer.errors import UsageError

TINY = "tiny"
"""The name of the policy that ships with this package."""
_SHIPPED = Path(__file__).parent / "tiny_policy"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Policy:
    """A causal language model with its tokenizer, and what it was loaded from."""

    model: Any
    tokenizer: Any
    name: str
    folder: str

    @property
    def has_tied_embeddings(self) -> bool:
        """Whether input and output embeddings are one tensor."""
        output = self.model.get_output_embeddings()
        return output is not None and output.weight is self.model.get_input_embeddings().weight


def load_policy(name: str, *, device: str = "cpu", dtype: str = "float32") -> Policy:
    """Load ``tiny``, a folder, or a model of the local Hugging Face cache or hub.

    Raises: UsageError, where there is no such model, no tokenizer with it, or no such device.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would stand between the lines of the log at every checkpoint
    folder = resolve_model(name)
    numbers = getattr(torch, checked_dtype(dtype))
    here = is_only_here(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=here)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {name}: no tokenizer could be loaded from {folder}: {error}") from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=numbers, attn_implementation="sdpa", local_files_only=here
        )
        model = model.to(torch.device(device))
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {name}: the model could not be loaded from {folder}: {error}") from error
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {device}: {error}") from error
    return Policy(model.eval(), tokenizer, name, folder)


def resolve_model(name: str) -> str:
    """The absolute folder that ``name`` means, or ``name`` itself where it is one of the hub. Raises: UsageError."""
    if name == TINY:
        if not (_SHIPPED / "config.json").is_file():
            raise UsageError(f"--model tiny: {_SHIPPED} holds no model; make it with scripts/make_tiny_policy.py.")
        return str(_SHIPPED)
    path = Path(name)
    if path.is_dir() and not (path / "config.json").is_file():
        raise UsageError(f"--model {name}: that folder holds no model (no config.json).")
    if not path.exists() and (path.is_absolute() or name.startswith(".")):
        raise UsageError(f"--model {name}: no such folder.")
    return str(path.resolve()) if path.is_dir() else name


def check_model(name: str) -> None:
    """Raises: UsageError, within seconds, where there is no such model here and none can be had."""
    folder = resolve_model(name)
    if problem := why_absent(folder):
        raise UsageError(f"--model {name}: {problem}; {TINY} is the name of the policy that ships.")


def checked_dtype(dtype: str) -> str:
    """Raises: UsageError."""
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}.")
    return dtype
