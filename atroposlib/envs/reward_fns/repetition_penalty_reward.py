"""A penalty for text that repeats itself."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SENTENCE_END: Final = re.compile(r"[.!?]+(?=\s|$)|[。！？]+|\n+")
_WEIGHTS: Final = {
    "word_repetition": 0.3,
    "phrase_repetition": 0.4,
    "consecutive_repetition": 0.6,
    "beginning_repetition": 0.5,
}
_STOPWORDS: Final = frozenset(
    {
        "been", "being", "could", "from", "have", "shall", "should", "than", "that", "their", "then", "there", "these",
        "this", "those", "what", "when", "where", "which", "whom", "whose", "will", "with", "would",
    }
)  # fmt: skip


@registry.register
class RepetitionPenaltyReward(TextReward):
    """0 for text that does not repeat itself, down to -1 for text that does nothing else.

    A sentence (of more than three words) that returns: ``paragraph_repetition_base_penalty`` - 0.4·(its returns / all
    sentences). Else, with r = Σ weight·rate of words, of 3- to 5-grams (each times n/3), of words said twice in a row
    and of first three words of sentences: 0 where r ≤ ``threshold``, else -(r - threshold) / (1 - threshold), at least
    -0.1. A text of fewer than ``min_words`` words gets ``short_text_penalty``, as does one of fewer than
    ``min_sentences`` sentences if it repeats less. Lines are sentences too; a decimal point ends none.

    Range: -1 to 0. Source: parameters and weights of Atropos.
    """

    cpu_bound = True

    def __init__(
        self,
        threshold: float = 0.05,
        min_words: int = 10,
        min_sentences: int = 2,
        short_text_penalty: float = -0.1,
        paragraph_repetition_base_penalty: float = -0.6,
        component_weights: Mapping[str, float] | None = None,
        stopwords: Collection[str] | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        unknown = [name for name in component_weights or () if name not in _WEIGHTS]
        if unknown:
            raise ValueError(f"component_weights has {unknown[0]!r}; there are {', '.join(_WEIGHTS)}")
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be from 0 to below 1, not {threshold:g}")
        self.threshold = threshold
        self.min_words = min_words
        self.min_sentences = min_sentences
        self.short_text_penalty = short_text_penalty
        self.paragraph_repetition_base_penalty = paragraph_repetition_base_penalty
        self.component_weights = {**_WEIGHTS, **(component_weights or {})}
        self.stopwords = frozenset(stopwords) if stopwords is not None else _STOPWORDS

    def judge_text(self, text: str) -> Verdict:
        """Measure how much of it was said before."""
        words = _WORD.findall(text.lower())
        sentences = [each for each in (_words(part) for part in _SENTENCE_END.split(text)) if each]
        if len(words) < self.min_words:
            return Verdict(self.short_text_penalty, f"{len(words)} words are too few")
        penalty = self._penalty(words, sentences)
        if len(sentences) < self.min_sentences and penalty > self.short_text_penalty:
            return Verdict(self.short_text_penalty, f"{len(sentences)} sentences are too few")
        return penalty

    def _penalty(self, words: Sequence[str], sentences: Sequence[Sequence[str]]) -> Verdict:
        counts = Counter(" ".join(each) for each in sentences if len(each) > 3)
        returns = counts.total() - len(counts)
        if returns:
            share = returns / len(sentences)
            penalty = max(-1.0, self.paragraph_repetition_base_penalty - 0.4 * share)
            return Verdict(penalty, f"{returns} of {len(sentences)} sentences were said before")
        rates = self._rates(words, sentences)
        rate = sum(self.component_weights[name] * value for name, value in rates.items())
        why = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in rates.items() if value)
        why = f"{why or 'no repetition'}: {rate:.3f} (threshold {self.threshold:g})"
        if rate <= self.threshold:
            return Verdict(0.0, why)
        return Verdict(min(-0.1, -min(1.0, (rate - self.threshold) / (1 - self.threshold))), why)

    def _rates(self, words: Sequence[str], sentences: Sequence[Sequence[str]]) -> dict[str, float]:
        """By component: what is said again, per word (beginnings: per sentence)."""
        counted = Counter(word for word in words if len(word) > 3 and word not in self.stopwords)
        again = sum(count - 1 for count in counted.values() if count > 2)
        phrases = sum(_returns([*zip(*(words[i:] for i in range(n)), strict=False)]) * n / 3 for n in (3, 4, 5))
        twice = sum(1 for left, right in itertools.pairwise(words) if left == right and len(left) > 2)
        beginnings = _returns([tuple(each[:3]) for each in sentences if len(each) >= 3])
        return {
            "word_repetition": again / len(words),
            "phrase_repetition": phrases / len(words),
            "consecutive_repetition": twice / len(words),
            "beginning_repetition": beginnings / max(1, len(sentences)),
        }


def _words(sentence: str) -> list[str]:
    return sentence.lower().split()


def _returns(phrases: Sequence[Any]) -> int:
    return len(phrases) - len(set(phrases))
