"""Whether a completion is JSON as asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each, item_of_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError

_FENCE: Final = re.compile(r"^[ \t]{0,3}```[ \t]*(\w*)[ \t]*$", re.MULTILINE)
_MOST_BEGINNINGS: Final = 1000
_NOTHING: Final = object()


@registry.register
class JsonSchemaReward(RewardFunction):
    """1 where the completion holds JSON that satisfies the schema, else 0.

    The JSON is all that follows the last ``</think>``, else the last fenced block that is JSON, else (unless
    ``strict``) the last object or list in the text. ``schema`` is a JSON schema, or the path of a file with one;
    ``schema_field`` names the field of the item that holds it instead (as a mapping or as text). Without either, any
    JSON will do. With ``compare`` it must also equal the right answer.

    Range: 0 or 1. Source: JSON Schema as the ``jsonschema`` package validates it.
    """

    cpu_bound = True  # a schema may hold patterns that backtrack for ever
    independent = True

    def __init__(
        self,
        schema: Mapping[str, Any] | bool | str | None = None,
        schema_field: str | None = None,
        compare: bool = False,
        strict: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.schema = _read_schema(schema) if isinstance(schema, str) else schema
        self.schema_field = schema_field
        self.compare = compare
        self.strict = strict
        if self.schema is not None:
            _check_schema(self.schema, ValueError)

    @property
    def needs_answer(self) -> bool:
        """Only to compare with."""
        return self.compare

    def compute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        item: Any = None,
        **_: Any,
    ) -> list[Verdict]:
        """Find and validate. Raises: RewardError where the item has no schema, or no right answer to compare with."""
        nothing = [_NOTHING] * len(completions)
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution) if self.compare else nothing
        items = item_of_each(completions, item)
        return [
            self._judge(self.get_content(completion), self._schema_of(each), right)
            for completion, each, right in zip(completions, items, gold, strict=True)
        ]

    def _judge(self, text: str, schema: Any, gold: Any) -> Verdict:
        found = _find_json(after_thoughts(text), self.strict)
        if found is _NOTHING:
            return Verdict(0.0, "there is no JSON")
        complaint = None if schema is None else _complaint(found, schema)
        if complaint is not None:
            return Verdict(0.0, complaint)
        if gold is _NOTHING:
            return Verdict(1.0, f"{quoted(json.dumps(found))} is valid")
        wanted = json.loads(gold) if isinstance(gold, str) and _is_json(gold) else gold
        sign = "=" if found == wanted else "≠"
        return Verdict(float(found == wanted), f"{quoted(json.dumps(found))} {sign} {quoted(wanted)} (truth)")

    def _schema_of(self, item: Any) -> Any:
        if self.schema_field is None:
            return self.schema
        schema = item.get(self.schema_field) if isinstance(item, Mapping) else None
        if isinstance(schema, str) and _is_json(schema):
            schema = json.loads(schema)
        if not isinstance(schema, (Mapping, bool)):
            raise RewardError(f"json_schema: the item has no schema in its field {self.schema_field!r}")
        _check_schema(schema, RewardError)
        return schema


def _read_schema(path: str) -> Any:
    try:
        return json.loads(Path(path).expanduser().read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"schema {path!r} cannot be read: {error}") from error


def _check_schema(schema: Any, error_class: type[Exception]) -> None:
    try:
        import jsonschema
    except ImportError as error:
        raise error_class(f"json_schema takes jsonschema: pip install 'atroposlib[rewards]' ({error})") from error
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise error_class(f"json_schema: the schema itself is wrong: {error.message}") from error


def _complaint(value: Any, schema: Any) -> str | None:
    import jsonschema

    validator = jsonschema.validators.validator_for(schema)(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else f"at {error.json_path}: {error.message[:200]}"


def _is_json(text: str) -> bool:
    return _parsed(text) is not _NOTHING


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _find_json(text: str, strict: bool) -> Any:
    whole = _parsed(text.strip())
    if whole is not _NOTHING:
        return whole
    for block in reversed(_fenced_blocks(text)):
        inside = _parsed(block)
        if inside is not _NOTHING:
            return inside
    return _NOTHING if strict else _last_value(text)


def _fenced_blocks(text: str) -> list[str]:
    fences = [*_FENCE.finditer(text)]
    return [text[begin.end() : end.start()] for begin, end in zip(fences[::2], fences[1::2], strict=False)]


def _last_value(text: str) -> Any:
    """The last object or list that begins outside of another one."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found: Any = _NOTHING
    position = 0
    for _ in range(_MOST_BEGINNINGS):
        begin = re.compile(r"[\[{]").search(text, position)
        if begin is None:
            break
        try:
            found, position = decoder.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            position = begin.end()
    return found
