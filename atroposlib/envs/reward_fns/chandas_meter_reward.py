"""How well a Sanskrit verse keeps its metre."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.reward_fns.prosody.metres import likeness, metre_called
from atroposlib.envs.reward_fns.prosody.syllables import weights
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward, after_thoughts
from atroposlib.envs.reward_fns.verdict import Verdict


@registry.register
class ChandasMeterReward(TextReward):
    """The share of syllables whose weight is that of the ``meter``, of those that are there or should be.

    The verse follows the last ``</think>``, in Devanagari or IAST, a quarter or more on each line (or between dandas).
    A syllable is heavy if its vowel is long, or anusvara, visarga or two consonants follow; the last one of a quarter
    may be either. "tristubh" and "jagati" are the best of their metres.

    Range: 0 to 1. Source: the sama-vrtta of Pingala's Chandahsastra; ``meter`` as in Atropos.
    """

    cpu_bound = True

    def __init__(self, meter: str = "tristubh", weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.meter = meter
        self.patterns = metre_called(meter)

    def judge_text(self, text: str) -> Verdict:
        """Scan the verse."""
        lines = weights(after_thoughts(text))
        if not lines:
            return Verdict(0.0, "there are no syllables")
        best = max(likeness(lines, pattern) for pattern in self.patterns)
        return Verdict(best, f"{' '.join(lines)[:200]} beside {self.meter}")
