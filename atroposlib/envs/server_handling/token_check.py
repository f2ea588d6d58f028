"""Whether a recorded sample is still what the engine sampled: its lists against each other and its certificate.

Nothing but the sample is needed; a tokenizer adds that the ids are in its vocabulary, that the template is the one the
sample was rendered by, and that the context is text which that tokenizer would encode alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.envs.server_handling.certificate import digest
from atroposlib.envs.server_handling.token_graph import HIGHEST_LOGPROB, MASKED, PROMPT_LOGPROB
from atroposlib.envs.server_handling.token_text import TokenText


@dataclass(frozen=True)
class RecordedSample:
    """One sequence of a group as it stands on the wire. ``certificate`` is ``None`` where it carries none."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    certificate: Mapping[str, Any] | None
    trainable: bool

    @classmethod
    def of(cls, group: Mapping[str, Any], index: int) -> RecordedSample:
        """The ``index``-th sequence of a group. Raises: IndexError, TypeError where the group is malformed."""
        overrides = (group.get("overrides") or [None] * (index + 1))[index] or {}
        logprobs = group.get("inference_logprobs")
        return cls(
            ids=list(group["tokens"][index]),
            mask=list(group["masks"][index]),
            logprobs=None if logprobs is None else list(logprobs[index]),
            certificate=overrides.get("certificate"),
            trainable=overrides.get("trainable", True) is not False,
        )


@dataclass(frozen=True)
class Problem:
    """What is wrong with a sample. ``reason`` is a word to count it under; ``position`` the first id it shows at."""

    reason: str
    message: str
    position: int | None = None


@dataclass(frozen=True)
class Reading:
    """What a tokenizer says of recorded ids: the ids it would make of the same text."""

    tokens: TokenText
    template: str
    """First 16 hex digits of the SHA-256 of its chat template."""


def problems_of(sample: RecordedSample, reading: Reading | None = None) -> list[Problem]:
    """All that is wrong with a sample; empty if it is as it was recorded."""
    misaligned = _lengths(sample)
    if misaligned:
        return [misaligned]
    found = [*_ids(sample, reading), *_mask(sample), *_logprobs(sample)]
    if sample.certificate is None or any(problem.reason != "vocabulary" for problem in found):
        return found
    found += _certificate(sample, sample.certificate, reading)
    if reading is not None and [problem.reason for problem in found] == ["digest"]:
        found += _context(sample, reading.tokens)
    return found


def _lengths(sample: RecordedSample) -> Problem | None:
    lengths = {"ids": len(sample.ids), "mask entries": len(sample.mask)}
    if sample.logprobs is not None:
        lengths["logprobs"] = len(sample.logprobs)
    if len(set(lengths.values())) == 1 and sample.ids:
        return None
    told = ", ".join(f"{count} {name}" for name, count in lengths.items())
    return Problem("misaligned", f"{told}: they must be as many, and at least one", min(lengths.values()))


def _ids(sample: RecordedSample, reading: Reading | None) -> Iterator[Problem]:
    vocabulary = None if reading is None else reading.tokens.vocabulary
    for position, number in enumerate(sample.ids):
        if type(number) is not int or number < 0:
            yield Problem("id", f"{number!r} is no id", position)
            return
        if vocabulary is not None and number >= vocabulary:
            yield Problem("vocabulary", f"id {number} is outside the vocabulary of {vocabulary} ids", position)
            return


def _mask(sample: RecordedSample) -> Iterator[Problem]:
    for position, (number, mask) in enumerate(zip(sample.ids, sample.mask, strict=True)):
        if mask not in (number, MASKED):
            yield Problem("mask", f"the mask is {mask!r}, but must be the id {number} or {MASKED}", position)
            return
    if all(mask == MASKED for mask in sample.mask):
        yield Problem("nothing_sampled", "every id is masked, so nothing is trained on")


def _logprobs(sample: RecordedSample) -> Iterator[Problem]:
    for position, (mask, value) in enumerate(zip(sample.mask, sample.logprobs or (), strict=False)):
        if mask == MASKED and value != PROMPT_LOGPROB:
            yield Problem("logprob", f"a masked id has the logprob {value!r} instead of {PROMPT_LOGPROB}", position)
            return
        if mask != MASKED and not _is_logprob(value):
            yield Problem("logprob", f"{value!r} is no logprob of a sampled id", position)
            return


def _is_logprob(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value <= HIGHEST_LOGPROB


def _certificate(sample: RecordedSample, certificate: Mapping[str, Any], reading: Reading | None) -> Iterator[Problem]:
    if sample.logprobs is None:
        yield Problem("digest", "the certificate covers logprobs, but the group holds no inference_logprobs")
    elif certificate.get("digest") != digest(sample.ids, sample.mask, sample.logprobs):
        yield Problem("digest", "ids, mask or logprobs were changed since they were recorded: the digest is another")
    sampled = sum(mask != MASKED for mask in sample.mask)
    if certificate.get("sampled_tokens") != sampled:
        yield Problem(
            "sampled", f"{sampled} ids are trained on, the certificate says {certificate.get('sampled_tokens')}"
        )
    stretches = len(sampled_stretches(sample.mask))
    turns = certificate.get("turns")
    if not isinstance(turns, int) or stretches > turns:
        yield Problem("turns", f"{stretches} stretches are trained on, more than the {turns} turns of the certificate")
    if reading is not None and certificate.get("template") != reading.template:
        yield Problem(
            "template", f"rendered by the chat template {certificate.get('template')}, not {reading.template}"
        )


def _context(sample: RecordedSample, tokens: TokenText) -> Iterator[Problem]:
    """Where the context is not what the tokenizer makes of its own text; it was encoded, so it should be."""
    for start, end in context_stretches(sample.mask):
        ids = sample.ids[start:end]
        again = tokens.encode(tokens.decode(ids))
        if again == ids:
            continue
        pairs = enumerate(itertools.zip_longest(ids, again))
        offset = next(at for at, (recorded, encoded) in pairs if recorded != encoded)
        told = f"the context text is encoded as {again[offset : offset + 3]} from here on"
        yield Problem("context", told, min(start + offset, end - 1))


def sampled_stretches(mask: Sequence[int]) -> list[tuple[int, int]]:
    """``(start, end)`` of each run of ids that are trained on."""
    return _stretches(mask, sampled=True)


def context_stretches(mask: Sequence[int]) -> list[tuple[int, int]]:
    """``(start, end)`` of each run of masked ids."""
    return _stretches(mask, sampled=False)


def _stretches(mask: Sequence[int], sampled: bool) -> list[tuple[int, int]]:
    found, start = [], 0
    for is_sampled, run in itertools.groupby(mask, key=lambda value: value != MASKED):
        end = start + sum(1 for _ in run)
        if is_sampled is sampled:
            found.append((start, end))
        start = end
    return found
