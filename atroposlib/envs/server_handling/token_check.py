"""Whether a recorded sample is still what the engine sampled: its lists against each other and its certificate.

Nothing but the sample is needed; a tokenizer adds that the ids are in its vocabulary, that the template is the one the
sample was rendered by, and that the context is text which that tokenizer would encode alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from atroposlib.envs.server_handling.certificate import Certificate, digest
from atroposlib.envs.server_handling.token_graph import HIGHEST_LOGPROB, MASKED, PROMPT_LOGPROB
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.wire import MAX_TOKEN_ID


@dataclass(frozen=True)
class RecordedSample:
    """One sequence of a group as it stands on the wire, where anything may stand in the place of a number.

    ``certificate`` is ``None`` where it carries none.
    """

    ids: list[Any]
    mask: list[Any]
    logprobs: list[Any] | None
    certificate: Any
    trainable: bool

    @classmethod
    def of(cls, group: Mapping[str, Any], index: int) -> RecordedSample:
        """The ``index``-th sequence of a group that ``malformation`` finds no fault with."""
        overrides = (group.get("overrides") or [None] * (index + 1))[index] or {}
        logprobs = group.get("inference_logprobs") or None
        return cls(
            ids=group["tokens"][index],
            mask=group["masks"][index],
            logprobs=None if logprobs is None else logprobs[index],
            certificate=overrides.get("certificate"),
            trainable=overrides.get("trainable", True) is not False,
        )


def malformation(group: object) -> str | None:
    """Why something is no group of samples, whatever its numbers say; ``None`` if it is one."""
    if not isinstance(group, dict) or not all(isinstance(group.get(key), list) for key in ("tokens", "masks")):
        return "no scored group, which has tokens and masks"
    samples = len(group["tokens"])
    if not samples:
        return "a group without samples"
    for key, entries in _lists_of(group).items():
        if not isinstance(entries, list):
            return f"{key} is no list"
        if len(entries) != samples:
            return f"the lists of the group are not of one length ({samples} tokens, {len(entries)} {key})"
        wrong = next((at for at, entry in enumerate(entries) if not _ENTRIES[key](entry)), None)
        if wrong is not None:
            return f"{key}[{wrong}] is {str(entries[wrong])[:40]}, which cannot stand there"
    return None


def _lists_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """What has one entry for each sample; an optional list that is empty says nothing."""
    needed = ("tokens", "masks", "scores")
    return {key: group[key] for key in _ENTRIES if group.get(key, []) not in ([], None) or key in group.keys() & needed}


def _is_list(entry: object) -> bool:
    return isinstance(entry, list)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


_ENTRIES: Mapping[str, Callable[[object], bool]] = {
    "tokens": _is_list,
    "masks": _is_list,
    "scores": _is_number,
    "overrides": lambda entry: entry is None or isinstance(entry, dict),
    **dict.fromkeys(("inference_logprobs", "ref_logprobs", "advantages", "messages"), _is_list),
    **dict.fromkeys(("distill_token_ids", "distill_logprobs"), _is_list),
}
"""What an entry of each list of a group is."""


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
    found += _certificate(sample, reading)
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
        if type(number) is not int or not 0 <= number <= MAX_TOKEN_ID:
            yield Problem("id", f"{number!r} is no id", position)
            return
        if vocabulary is not None and number >= vocabulary:
            yield Problem("vocabulary", f"id {number} is outside the vocabulary of {vocabulary} ids", position)
            return


def _mask(sample: RecordedSample) -> Iterator[Problem]:
    for position, (number, mask) in enumerate(zip(sample.ids, sample.mask, strict=True)):
        if type(mask) is not int or mask not in (number, MASKED):
            yield Problem("mask", f"the mask is {mask!r}, but must be the id {number} or {MASKED}", position)
            return
    if all(mask == MASKED for mask in sample.mask):
        yield Problem("nothing_sampled", "every id is masked, so nothing is trained on")


def _logprobs(sample: RecordedSample) -> Iterator[Problem]:
    for position, (mask, value) in enumerate(zip(sample.mask, sample.logprobs or (), strict=False)):
        if mask == MASKED and not (_is_number(value) and value == PROMPT_LOGPROB):
            yield Problem("logprob", f"a masked id has the logprob {value!r} instead of {PROMPT_LOGPROB}", position)
            return
        if mask != MASKED and not _is_logprob(value):
            yield Problem("logprob", f"{value!r} is no logprob of a sampled id", position)
            return


def _is_logprob(value: object) -> bool:
    return _is_number(value) and math.isfinite(value) and value <= HIGHEST_LOGPROB  # type: ignore[arg-type,operator]


def _certificate(sample: RecordedSample, reading: Reading | None) -> Iterator[Problem]:
    try:
        certificate = _certificate_type().validate_python(sample.certificate, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        yield Problem("certificate", ": ".join([*map(str, fault["loc"]), fault["msg"]]))
        return
    if sample.logprobs is None:
        yield Problem("digest", "the certificate covers logprobs, but the group holds no inference_logprobs")
    elif certificate["digest"] != digest(sample.ids, sample.mask, sample.logprobs):
        yield Problem("digest", "ids, mask or logprobs were changed since they were recorded: the digest is another")
    sampled = sum(mask != MASKED for mask in sample.mask)
    if certificate["sampled_tokens"] != sampled:
        yield Problem("sampled", f"{sampled} ids are trained on, the certificate says {certificate['sampled_tokens']}")
    stretches, turns = len(sampled_stretches(sample.mask)), certificate["turns"]
    if stretches > turns:
        yield Problem("turns", f"{stretches} stretches are trained on, more than the {turns} turns of the certificate")
    if reading is not None and certificate["template"] != reading.template:
        yield Problem("template", f"rendered by the chat template {certificate['template']}, not {reading.template}")


@cache
def _certificate_type() -> TypeAdapter[Certificate]:
    return TypeAdapter(Certificate)


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
