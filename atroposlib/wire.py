"""Each message of the trajectory server's HTTP API, written once.

A *scored group* is what environments send and trainers receive: several sequences made from one item, with a score
each. Its fourteen keys (``GROUP_KEYS``) always stand together in an answer of ``GET /batch``, absent ones null.
Axis names used below: ``n`` sequences, ``t`` tokens of one sequence, ``k`` alternatives at one position.

    route                    request               answer
    POST /register           Registration          Registered
    POST /register-env       EnvRegistration       EnvRegistered, or EnvWaits before the first GET /batch
    POST /disconnect-env     EnvIdentifier         Disconnected
    GET  /wandb_info                               WandbInfo
    GET  /info                                     RunInfo
    GET  /batch              ?ack=ID               BatchAnswer (header ``x-batch-id``)
    GET  /latest_example                           a group
    POST /scored_data        a group               Received
    POST /scored_data_list   a list of groups      ListReceived
    GET  /status                                   ServerStatus
    GET  /status-env         EnvIdentifier (body or query)   EnvStatus
    GET  /reset_data                               the text "Reset successful"

A batch is *in flight* until it is acknowledged. ``GET /batch?ack=ID`` acknowledges the batch of that ``x-batch-id`` and
gets the next one, or the one in flight again if that is another; a trainer that has received none yet says ``ack=0``.
``GET /batch`` alone acknowledges whatever was sent to the end. POST /register brings back what is in flight.

Refusals are ``Refusal`` bodies: 401 (no or wrong ``Authorization: Bearer TOKEN``), 404 (``register_again`` true: this
server does not know the ``env_id``, so POST /register-env again), 413, 422 (the message names the key at fault), 503
with ``Retry-After`` (the queue is full, or its store is broken).

Bodies of requests may be gzipped (``Content-Encoding: gzip``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from atroposlib.errors import GroupRefused

MAX_TOKEN_ID: Final = 2**31 - 1
IGNORED_MASK: Final = -100
"""The value of ``masks`` where a token is not trained on; elsewhere the mask repeats the token id."""


class _FirstFault(FailFast):
    """One bad element ends the check of its list: a hostile body must not make a million error records.

    Hashable, so that it may stand inside a union.
    """

    __hash__ = object.__hash__


_Token = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
_Mask = Annotated[int, Field(ge=IGNORED_MASK, le=MAX_TOKEN_ID)]
_Tokens = Annotated[list[_Token], _FirstFault()]
_Masks = Annotated[list[_Mask], _FirstFault()]
_Floats = Annotated[list[FiniteFloat], _FirstFault()]
_Dict = dict[str, Any]


class ScoredDataGroup(TypedDict, total=False):
    """Sequences made from one item. ``tokens``, ``masks`` and ``scores`` must be there when it is sent."""

    tokens: Annotated[list[_Tokens], _FirstFault()]
    """[n][t] the ids the engine consumed and sampled."""
    masks: Annotated[list[_Masks], _FirstFault()]
    """[n][t] the token id where it is trained on, -100 elsewhere."""
    scores: _Floats
    """[n] finite."""
    advantages: Annotated[list[_Floats], _FirstFault()] | None
    """[n][t] advantages of single tokens, instead of those the trainer makes from ``scores``."""
    ref_logprobs: Annotated[list[_Floats], _FirstFault()] | None
    """[n][t] of a reference model."""
    messages: Annotated[list[Annotated[list[_Dict], _FirstFault()]], _FirstFault()] | None
    """[n][turn] chat messages; each has a ``role``, and content only where it has some."""
    generation_params: _Dict | None
    """How all sequences were sampled, e.g. ``{"temperature": 1.0}``."""
    inference_logprobs: Annotated[list[_Floats], _FirstFault()] | None
    """[n][t] the engine's own logprobs; 1.0 where a token was not sampled."""
    overrides: Annotated[list[_Dict], _FirstFault()] | None
    """[n] instructions to the trainer for single sequences, e.g. ``{"set_advantage_to_zero": True}``."""
    group_overrides: _Dict | None
    """The same for the whole group."""
    images: Any
    env_id: int | None
    """As answered by /register-env."""
    distill_token_ids: Annotated[list[Annotated[list[_Tokens], _FirstFault()]], _FirstFault()] | None
    """[n][t][k] a teacher's best tokens at each position."""
    distill_logprobs: Annotated[list[Annotated[list[_Floats], _FirstFault()]], _FirstFault()] | None
    """[n][t][k] their logprobs."""
    group_id: Annotated[str, Field(max_length=200)] | None
    """Names this group for ever: a group sent twice under one id is queued once. Not delivered to the trainer."""
    run_id: str | None
    """As answered by /register-env; a restarted server sees by it that ``env_id`` is of another run. Not delivered."""


_ENVELOPE_KEYS = ("group_id", "run_id")
GROUP_KEYS: Final = tuple(key for key in ScoredDataGroup.__annotations__ if key not in _ENVELOPE_KEYS)


_ROWS_OF_TOKENS = (
    "masks",
    "advantages",
    "ref_logprobs",
    "inference_logprobs",
    "distill_token_ids",
    "distill_logprobs",
)


class ScoredDataItem(TypedDict, total=False):
    """One sequence of a group, as ``collect_trajectory`` returns it: each key holds one element of the group's list."""

    tokens: list[int]
    masks: list[int]
    scores: float
    advantages: list[float] | None
    ref_logprobs: list[float] | None
    messages: list[Any] | None
    generation_params: _Dict | None
    inference_logprobs: list[float] | None
    overrides: _Dict | None
    group_overrides: _Dict | None
    images: Any
    env_id: int | None
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None


class Registration(BaseModel):
    """A trainer's description of its run. ``num_steps`` and ``starting_step`` count batches."""

    wandb_group: str
    wandb_project: str
    batch_size: int = Field(ge=1)
    """In sequences, not groups."""
    max_token_len: int
    """Longest sequence the trainer takes; 0 or less means no limit."""
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int = Field(ge=0)
    num_steps: int
    batching: Literal["exact", "fifo"] = "exact"
    """``exact``: every batch holds exactly ``batch_size`` sequences, the oldest groups that make that sum. ``fifo``:
    groups in strict order, as many as fit into ``batch_size``; nothing can overtake, and batches may fall short."""


class EnvRegistration(BaseModel):
    """An environment's description of itself."""

    max_token_length: int
    desired_name: str | None = None
    weight: FiniteFloat = 1.0
    group_size: int = Field(ge=1)
    min_batch_allocation: Annotated[FiniteFloat, Field(ge=0.0, le=1.0)] | None = None
    """Share of each batch that is kept for this environment while it is alive."""


class EnvIdentifier(BaseModel):
    """Which environment asks; ``run_id`` as answered by /register-env, where the client keeps it."""

    model_config = ConfigDict(extra="ignore")

    env_id: int
    run_id: str | None = None


class Registered(TypedDict):
    """Answer of POST /register."""

    uuid: int


class EnvRegistered(TypedDict):
    """Answer of POST /register-env once the trainer has asked for a batch."""

    status: Literal["success"]
    env_id: int
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int
    run_id: str


class EnvWaits(TypedDict):
    """Answer of POST /register-env before that: ask again."""

    status: Literal["wait for trainer to start"]


class Disconnected(TypedDict, total=False):
    """Answer of POST /disconnect-env; ``error`` only where it failed."""

    status: Literal["success", "failure"]
    error: str


class WandbInfo(TypedDict):
    """Answer of GET /wandb_info; nulls before a trainer has registered."""

    group: str | None
    project: str | None


class RunInfo(TypedDict):
    """Answer of GET /info; -1 before a trainer has registered."""

    batch_size: int
    max_token_len: int


class BatchAnswer(TypedDict, total=False):
    """Answer of GET /batch: groups in order of arrival, null while there is no full batch.

    ``status`` and ``message`` are there only before a trainer has registered (then ``batch`` is empty).
    """

    batch: list[ScoredDataGroup] | None
    status: Literal["error"]
    message: str


class Received(TypedDict):
    """Answer of POST /scored_data."""

    status: Literal["received"]


class ListReceived(TypedDict):
    """Answer of POST /scored_data_list."""

    status: Literal["received"]
    groups_processed: int


class ServerStatus(TypedDict):
    """Answer of GET /status. The first two keys are the ones clients rely on."""

    current_step: int
    queue_size: int
    """Groups waiting."""
    queued_sequences: int
    queued_bytes: int
    batches_in_flight: int
    """Batches answered to a trainer which has not asked for the next one yet."""
    groups_received: int
    groups_repeated: int
    """Of those, sent again under a known ``group_id``: acknowledged, not queued twice."""
    groups_delivered: int
    groups_refused: dict[str, int]
    """Groups answered with an error, by reason; a sender may have sent them again."""
    groups_dropped: dict[str, int]
    """Groups thrown away after they had been accepted, by reason."""
    stalled: str | None
    """Why no batch can be made although enough sequences wait; null where all is well."""
    connected_envs: int
    run_id: str


class EnvStatus(TypedDict):
    """Answer of GET /status-env. Sizes are in groups of the environment that asks."""

    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class Refusal(TypedDict, total=False):
    """Body of every answer with a status of 400 or more."""

    status: Literal["failure"]
    error: str
    field: str
    register_again: bool


@cache
def _group_adapter() -> TypeAdapter[ScoredDataGroup]:
    return TypeAdapter(ScoredDataGroup)


@cache
def _groups_adapter() -> TypeAdapter[list[ScoredDataGroup]]:
    return TypeAdapter(Annotated[list[ScoredDataGroup], _FirstFault()])


def read_group(body: bytes) -> ScoredDataGroup:
    """Parse and check one group. Unknown keys are dropped, absent ones stay absent.

    Raises: GroupRefused, whose message names the key at fault.
    """
    try:
        group = _group_adapter().validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    check_group(group)
    return group


def read_groups(body: bytes) -> list[ScoredDataGroup]:
    """Parse and check a list of groups; one that is at fault refuses them all. Raises: GroupRefused."""
    try:
        groups = _groups_adapter().validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    for index, group in enumerate(groups):
        try:
            check_group(group)
        except GroupRefused as refusal:
            raise GroupRefused(f"[{index}].{refusal}", refusal.field) from None
    return groups


def validate_group(group: Mapping[str, Any]) -> ScoredDataGroup:
    """The same for a group that is already a mapping. Raises: GroupRefused."""
    try:
        checked = _group_adapter().validate_python(group)
    except ValidationError as error:
        raise _refused(error) from None
    check_group(checked)
    return checked


def check_group(group: ScoredDataGroup) -> None:
    """Check that all keys speak of the same sequences; an optional list that is empty says nothing.

    Raises: GroupRefused.
    """
    for key in ("tokens", "masks", "scores"):
        if key not in group:
            raise GroupRefused(f"{key}: required, but absent", key)
    lengths = [len(sequence) for sequence in group["tokens"]]
    if not lengths:
        raise GroupRefused("tokens: a group needs at least one sequence", "tokens")
    _check_count("scores", group["scores"], len(lengths))
    for key in ("messages", "overrides"):
        _check_count(key, group.get(key) or None, len(lengths))
    for key in _ROWS_OF_TOKENS:
        rows = group.get(key) if key == "masks" else group.get(key) or None
        _check_count(key, rows, len(lengths))
        _check_lengths(key, rows, lengths)
    _check_alternatives(group)
    _check_roles(group.get("messages"))


def _check_count(key: str, value: Any, sequences: int) -> None:
    if value is not None and len(value) != sequences:
        raise GroupRefused(f"{key}: has {len(value)} entries for {sequences} sequences of tokens", key)


def _check_lengths(key: str, rows: Any, lengths: Sequence[int]) -> None:
    for index, row in enumerate(rows or ()):
        if len(row) != lengths[index]:
            raise GroupRefused(f"{key}[{index}]: has {len(row)} positions for {lengths[index]} tokens", key)


def _check_alternatives(group: ScoredDataGroup) -> None:
    ids, logprobs = group.get("distill_token_ids"), group.get("distill_logprobs")
    if not ids or not logprobs:
        return
    for index, (id_row, logprob_row) in enumerate(zip(ids, logprobs, strict=True)):
        if any(len(a) != len(b) for a, b in zip(id_row, logprob_row, strict=True)):
            raise GroupRefused(f"distill_logprobs[{index}]: not as many as distill_token_ids", "distill_logprobs")


def _check_roles(conversations: Sequence[Sequence[Mapping[str, Any]]] | None) -> None:
    for index, conversation in enumerate(conversations or ()):
        for turn, message in enumerate(conversation):
            if not isinstance(message.get("role"), str):
                raise GroupRefused(f"messages[{index}][{turn}]: needs a role", "messages")


def _refused(error: ValidationError) -> GroupRefused:
    """Say the first fault as ``key[index][index]: what``."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    location = fault["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    field = next((part for part in location if isinstance(part, str)), "")
    return GroupRefused(f"{path or 'body'}: {fault['msg']}", field)
