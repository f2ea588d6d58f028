"""How near in meaning a completion is to the right answer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError
from atroposlib.hub import is_only_here, why_absent

_BATCH: Final = 32
_using_models: Final = threading.Lock()


@registry.register
class CosineScaledReward(RewardFunction):
    """min(``max_reward``, max(``min_reward``, 1 - ``scale_factor``·(1 - cos))), cos between sentence embeddings.

    The completion counts from the last ``</think>`` on (all of it if ``split_on_think_tag`` is off); an empty one gets
    ``default_reward``. Of a list of truths the nearest counts. ``model_name`` is a name of the Hugging Face hub or a
    local folder; it is loaded once per process, and takes ``sentence-transformers``. Longer texts are cut by the model
    (at 256 word pieces for the default one).

    Range: ``min_reward`` to ``max_reward``. Source: parameters of Atropos; Sentence-BERT (arXiv 1908.10084).
    """

    def __init__(
        self,
        model_name: str = "sentence-transformers/all-MiniLM-L6-v2",
        scale_factor: float = 1.0,
        min_reward: float = -1.0,
        max_reward: float = 1.0,
        default_reward: float = 0.0,
        split_on_think_tag: bool = True,
        device: str | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        if min_reward > max_reward:
            raise ValueError(f"min_reward {min_reward:g} is above max_reward {max_reward:g}")
        self.model_name = model_name
        self.scale_factor = scale_factor
        self.min_reward = min_reward
        self.max_reward = max_reward
        self.default_reward = default_reward
        self.split_on_think_tag = split_on_think_tag
        self.device = device

    def prepare(self) -> None:
        """Load the model. Raises: RewardError where that cannot be done."""
        with _using_models:
            _model(self.model_name, self.device)

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[Verdict]:
        """Compare meanings with ``ground_truth`` or ``solution``. Raises: RewardError where there is none."""
        gold = [
            accepted_answers(each) for each in gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        ]
        texts = [self.get_content(completion) for completion in completions]
        said = [(after_thoughts(text) if self.split_on_think_tag else text).strip() for text in texts]
        wanted = list(dict.fromkeys([*said, *(truth for truths in gold for truth in truths)]))
        vectors = dict(zip(wanted, self._embed(wanted), strict=True))
        return [self._verdict(text, truths, vectors) for text, truths in zip(said, gold, strict=True)]

    def _embed(self, texts: Sequence[str]) -> Any:
        with _using_models:  # a fast tokenizer refuses to be used by two threads
            model = _model(self.model_name, self.device)
            return model.encode(list(texts), batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False)

    def _verdict(self, text: str, truths: Sequence[str], vectors: dict[str, Any]) -> Verdict:
        if not text:
            return Verdict(self.default_reward, "the completion is empty")
        similarity, truth = max((float(vectors[text] @ vectors[truth]), truth) for truth in truths)
        reward = min(self.max_reward, max(self.min_reward, 1.0 - self.scale_factor * (1.0 - similarity)))
        return Verdict(reward, f"cosine {similarity:.3f} between {quoted(text)} and {quoted(truth)} (truth)")


def _model(name: str, device: str | None) -> Any:
    """Raises: RewardError where it cannot be had, at once where that is known from before."""
    found = _model_or_failure(name, device)
    if isinstance(found, RewardError):
        raise RewardError(str(found)) from found
    return found


@functools.lru_cache(maxsize=4)
def _model_or_failure(name: str, device: str | None) -> Any:
    try:
        return _load(name, device)
    except RewardError as failure:
        return failure


def _load(name: str, device: str | None) -> Any:
    # a bare name is one of the library's own models, as it is to the library
    whole_name = name if "/" in name or Path(name).is_dir() else f"sentence-transformers/{name}"
    if problem := why_absent(whole_name):
        raise RewardError(f"the embedding model cannot be had: {problem}")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise RewardError(
            f"cosine_scaled takes sentence-transformers: pip install 'atroposlib[embeddings]' ({error})"
        ) from error
    try:
        return SentenceTransformer(whole_name, device=device, local_files_only=is_only_here(whole_name))
    except (OSError, ValueError) as error:
        raise RewardError(
            f"the embedding model {name!r} cannot be loaded ({error}): make model_name the path of a local folder, or "
            "let the hub be reached"
        ) from error
