"""Steps, the operations of a journal: conditions and changes in one entry of the group; and their results.

docs/internals/journal.md shows the bytes. They are replicated: what is encoded once is decoded for ever.
"""

from collections.abc import Sequence

import msgspec

from nyala.common.errors import Corrupt, InvalidArgument, TooLarge

MAX_ENTRY_BYTES = 1 << 20
"""Data of one entry of a log, in bytes."""
MAX_LOG_NAME_BYTES = 255
"""Name of a log, in bytes of UTF-8."""
MAX_KEY_BYTES = 1 << 10
"""Key, in bytes of UTF-8."""
MAX_VALUE_BYTES = 256 << 10
"""Value of a key, in bytes."""
MAX_STEP_CHANGES = 64
"""Changes of one step, and as many conditions."""
MAX_STEP_BYTES = 4 << 20
"""Names, keys, data and values of one step, in bytes."""
MAX_INVALIDATED = 10_000
"""Ids that one step may invalidate."""

LEADER_KEYS = "leader/"
"""Beginning of the names of the keys that name leaders; a full journal has room for them."""
MAX_BATCH_STEPS = 64
"""Steps of one batch."""

_STEP, _DEFINITION, _BATCH = b"\x01", b"\x02", b"\x03"


class LogLast(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Condition: the id of the log's last change; 0: there is no such log."""

    log: str
    id: int


class KeyVersion(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Condition: the version of a key; 0: there is no such key."""

    key: str
    version: int


class LogCreated(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Condition: the id of the change that created the log; 0: there is no such log."""

    log: str
    id: int


class Append(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Change: an entry is appended to a log, which is created if need be; others of it become invalid."""

    log: str
    data: bytes
    invalidates: Sequence[int] = ()


class Invalidate(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Change: entries of a log become invalid; those that are no valid entries of it are ignored."""

    log: str
    ids: Sequence[int]


class SetKey(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Change: a key gets a value."""

    key: str
    value: bytes


class DeleteKey(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Change: a key is deleted."""

    key: str


class DeleteLog(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Change: a log is deleted with all of its entries."""

    log: str


Condition = LogLast | KeyVersion | LogCreated
Change = Append | Invalidate | SetKey | DeleteKey | DeleteLog


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Changes that take effect together, if all conditions hold on the state before."""

    conditions: Sequence[Condition] = ()
    changes: Sequence[Change] = ()


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Steps of one client in one entry of the group; each takes effect by itself, in their order."""

    steps: Sequence[Step]


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """Definition of a journal by the masters; a newer version replaces an older one.

    Attributes:
        version: version of the definition.
        name: name of the journal.
        limit_bytes: limit on the size of the valid entries and keys; steps that would leave more are refused.
    """

    version: int
    name: str
    limit_bytes: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Result: all changes took effect.

    Attributes:
        ids: ids of the changes, in their order; 0: it changed nothing, since what it deletes was not there.
    """

    ids: Sequence[int]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Result: a condition did not hold, and nothing took effect.

    Attributes:
        condition: index of the first that did not hold.
        actual: the id or version that was there.
    """

    condition: int
    actual: int


class Full(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Result: the journal would have grown above its limit, and nothing took effect.

    Attributes:
        bytes: what the step would have left.
        limit_bytes: limit on the size of the journal.
    """

    bytes: int
    limit_bytes: int


Result = Done | Failed | Full

_encoder = msgspec.msgpack.Encoder()
_steps = msgspec.msgpack.Decoder(Step)
_batches = msgspec.msgpack.Decoder(Batch)
_definitions = msgspec.msgpack.Decoder(Definition)
_results: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result)
_batch_results: msgspec.msgpack.Decoder[list[Result]] = msgspec.msgpack.Decoder(list[Result])


def encode_step(step: Step) -> bytes:
    """Return the payload of a step."""
    return _STEP + _encoder.encode(step)


def encode_batch(batch: Batch) -> bytes:
    """Return the payload of a batch."""
    return _BATCH + _encoder.encode(batch)


def encode_definition(definition: Definition) -> bytes:
    """Return the payload of a definition."""
    return _DEFINITION + _encoder.encode(definition)


def decode(payload: bytes) -> Step | Batch | Definition:
    """Return the operation of a payload.

    Raises:
        Corrupt: not one that this build knows.
    """
    kind, body = payload[:1], memoryview(payload)[1:]
    try:
        if kind == _STEP:
            return _steps.decode(body)
        if kind == _BATCH:
            return _batches.decode(body)
        if kind == _DEFINITION:
            return _definitions.decode(body)
    except (msgspec.MsgspecError, ValueError) as err:
        raise Corrupt(f"an operation of a journal does not decode: {err}") from err
    raise Corrupt(f"an operation of a journal of kind {kind!r}, which this build does not know")


def encode_result(result: Result) -> bytes:
    """Return the bytes of a result, as sessions keep them."""
    return _encoder.encode(result)


def decode_result(data: bytes) -> Result:
    """Return a result from its bytes.

    Raises:
        Corrupt: not one that this build knows.
    """
    try:
        return _results.decode(data)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"a result of a journal does not decode: {err}") from err


def encode_results(results: Sequence[Result]) -> bytes:
    """Return the bytes of the results of a batch, as sessions keep them."""
    return _encoder.encode(results)


def decode_results(data: bytes) -> list[Result]:
    """Return the results of a batch from their bytes.

    Raises:
        Corrupt: not those of a batch.
    """
    try:
        return _batch_results.decode(data)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"the results of a batch of steps do not decode: {err}") from err


def check(step: Step) -> None:
    """Refuse a step that no journal takes, before it is proposed.

    Raises:
        InvalidArgument: an empty name or step, or too many changes, conditions or ids.
        TooLarge: data, a value, a name or the whole is above its limit.
    """
    if not step.changes:
        raise InvalidArgument("the step changes nothing; add an append, a set or a delete")
    for what, count in (("changes", len(step.changes)), ("conditions", len(step.conditions))):
        if count > MAX_STEP_CHANGES:
            raise InvalidArgument(
                f"the step has {count} {what} and may have {MAX_STEP_CHANGES}; make several steps"
            )
    total = invalidated = 0
    for part in (*step.conditions, *step.changes):
        total += _check_part(part)
        invalidated += len(_invalidated(part))
    if invalidated > MAX_INVALIDATED:
        raise InvalidArgument(
            f"the step invalidates {invalidated} ids and may invalidate {MAX_INVALIDATED}; make several steps"
        )
    if total > MAX_STEP_BYTES:
        raise TooLarge(
            f"the step has {total} bytes and may have {MAX_STEP_BYTES}; make several steps"
        )


def _invalidated(part: Condition | Change) -> Sequence[int]:
    match part:
        case Append(invalidates=ids) | Invalidate(ids=ids):
            return ids
        case _:
            return ()


def _check_part(part: Condition | Change) -> int:
    """Check one condition or change; return its bytes."""
    match part:
        case KeyVersion(key=key) | SetKey(key=key) | DeleteKey(key=key):
            size = _check_name("key", key, MAX_KEY_BYTES)
        case _:
            size = _check_name("name of a log", part.log, MAX_LOG_NAME_BYTES)
    match part:
        case Append(data=data):
            size += _check_size("data of an entry", data, MAX_ENTRY_BYTES)
        case SetKey(value=value):
            size += _check_size("value of a key", value, MAX_VALUE_BYTES)
        case _:
            pass
    return size


def _check_name(what: str, name: str, limit: int) -> int:
    size = len(name.encode())
    if not size:
        raise InvalidArgument(f"the {what} is empty; give it at least one character")
    if size > limit:
        raise TooLarge(
            f"the {what} has {size} bytes of UTF-8 and may have {limit}; use a shorter one"
        )
    return size


def _check_size(what: str, data: bytes, limit: int) -> int:
    if len(data) > limit:
        raise TooLarge(
            f"the {what} has {len(data)} bytes and may have {limit}; split it, or store it in a table"
        )
    return len(data)
