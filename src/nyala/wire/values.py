"""Encoding of a few values (defaults, literals, keys): an uncompressed Arrow IPC stream of one column.

Also of value expressions, in postfix order, so that their depth is not that of a message.
"""

from collections.abc import Sequence

import pyarrow as pa

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.common.expressions.tree import (
    Arithmetic,
    ColumnRef,
    Constant,
    Expression,
    Operator,
    arithmetic,
)
from nyala.common.ids import ColumnId
from nyala.common.schema import Schema, check_stored
from nyala.wire.flight import read_batch, read_schema, split_message
from nyala.wire.ipc_header import read_header
from nyala.wire.proto import nyala_pb2 as pb

MAX_VALUES_BYTES = 4 << 20
"""Maximum size, in bytes, of the literals of one predicate leaf, or of one default."""

MAX_POOLS = 100
MAX_VALUE_STEPS = 1_000
"""Maximum number of columns, literals and operations of one expression."""
_STEPS = {
    Operator.ADD: pb.ValueStep.ADD,
    Operator.SUBTRACT: pb.ValueStep.SUBTRACT,
    Operator.MULTIPLY: pb.ValueStep.MULTIPLY,
    Operator.DIVIDE: pb.ValueStep.DIVIDE,
    Operator.MODULO: pb.ValueStep.MODULO,
    Operator.CONCAT: pb.ValueStep.CONCAT,
}
_OPERATORS = {kind: op for op, kind in _STEPS.items()}


def array_to_ipc(values: pa.Array) -> bytes:
    """Return an Arrow IPC stream of one column."""
    batch = pa.record_batch([values], names=["v"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def array_from_ipc(stored: bytes) -> pa.Array:
    """Return the column of an Arrow IPC stream, validated.

    Raises:
        InvalidArgument: invalid bytes, a compressed body, or not one column in one batch.
        TooLarge: over MAX_VALUES_BYTES.
    """
    if len(stored) > MAX_VALUES_BYTES:
        raise TooLarge(
            f"{len(stored)} bytes of values; at most {MAX_VALUES_BYTES} are allowed in one message",
            {"limit": str(MAX_VALUES_BYTES), "size": str(len(stored))},
        )
    header, rest = split_message(stored)
    schema = read_schema(header)
    header, rest = split_message(rest)
    batch = read_batch(schema, header, rest[: read_header(header).body_bytes])
    if batch.num_columns != 1:
        raise InvalidArgument(
            f"values are encoded as one column, not {batch.num_columns}; use a client of this version"
        )
    return batch.column(0)


def value_to_ipc(value: pa.Scalar | None) -> bytes:
    """Return the encoding of one value, which may be a null; empty for None."""
    return b"" if value is None else array_to_ipc(pa.array([value], value.type))


def value_from_ipc(stored: bytes, column: str, kind: pa.DataType) -> pa.Scalar | None:
    """Decode a column's default; the inverse of `value_to_ipc`.

    Args:
        stored: bytes; empty: no default.
        column: name, for errors.
        kind: Arrow type of the value.

    Raises:
        InvalidArgument: not one value of this type.
        TooLarge: as `array_from_ipc`.
    """
    if not stored:
        return None
    values = array_from_ipc(stored)
    if values.type != kind or len(values) != 1:
        raise InvalidArgument(
            f"the default of column {column[:80]!r} is not one value of type {kind}; give one"
        )
    return values[0]


class LiteralPools:
    """Literals of a large predicate, one array for each type; one IPC stream for each literal is too slow."""

    def __init__(self) -> None:
        self._values: dict[pa.DataType, list[pa.Scalar]] = {}

    def add(self, value: pa.Scalar) -> tuple[int, int]:
        """Add a literal; return the number of its pool, from 1, and its row."""
        values = self._values.setdefault(value.type, [])
        values.append(value)
        return list(self._values).index(value.type) + 1, len(values) - 1

    def stored(self) -> list[bytes]:
        """Return the pools, each as an IPC stream."""
        return [array_to_ipc(pa.array(v, kind)) for kind, v in self._values.items()]


class StoredPools:
    """Literals of a predicate that was received.

    Args:
        stored: the pools, each as an IPC stream.

    Raises:
        InvalidArgument: invalid bytes.
        TooLarge: as `array_from_ipc`.
    """

    def __init__(self, stored: Sequence[bytes]) -> None:
        if len(stored) > MAX_POOLS:
            raise InvalidArgument(
                f"a predicate has {len(stored)} pools of literals; at most {MAX_POOLS} are allowed"
            )
        self._values = [array_from_ipc(s) for s in stored]

    def at(self, pool: int, row: int) -> pa.Array:
        """Return one literal, as an array of one value.

        Raises:
            InvalidArgument: there is none.
        """
        if not 0 < pool <= len(self._values) or row >= len(self._values[pool - 1]):
            raise InvalidArgument(f"a predicate has no literal {row} in pool {pool}")
        return self._values[pool - 1].slice(row, 1)


def expression_to_proto(expression: Expression, pools: LiteralPools | None = None) -> pb.Value:
    """Return the message of a value expression; its literals are added to pools, if there are any."""
    steps: list[pb.ValueStep] = []
    _append(expression, steps, pools)
    return pb.Value(steps=steps)


def _append(node: Expression, steps: list[pb.ValueStep], pools: LiteralPools | None) -> None:
    match node:
        case ColumnRef(column_id):
            steps.append(pb.ValueStep(kind=pb.ValueStep.COLUMN, column_id=column_id))
        case Constant(value):
            step = pb.ValueStep(kind=pb.ValueStep.LITERAL)
            if pools is None:
                step.value_ipc = value_to_ipc(value)
            else:
                step.pool, step.row = pools.add(value)
            steps.append(step)
        case Arithmetic(op, left, right):
            _append(left, steps, pools)
            _append(right, steps, pools)
            steps.append(pb.ValueStep(kind=_STEPS[op]))


def expression_from_proto(
    message: pb.Value, schema: Schema, pools: StoredPools | None = None
) -> Expression:
    """Return the value expression of a message, validated against the schema of its table.

    Args:
        message: the message.
        schema: schema of the table.
        pools: literals that steps refer to; None: none.

    Raises:
        InvalidArgument: too many steps, too deep, an unknown kind or column id, missing operands, wrong
            types, a literal that is not one value.
        TooLarge: as `array_from_ipc`.
    """
    if len(message.steps) > MAX_VALUE_STEPS:
        raise InvalidArgument(
            f"an expression of {len(message.steps)} steps; at most {MAX_VALUE_STEPS} are allowed; simplify it"
        )
    found: list[Expression] = []
    for step in message.steps:
        if step.kind == pb.ValueStep.COLUMN:
            column = schema.by_id.get(ColumnId(step.column_id))
            if column is None:
                raise InvalidArgument(
                    f"an expression names column id {step.column_id}, which the table does not have; its "
                    "schema may have changed: open the table again"
                )
            found.append(ColumnRef(column.id, column.type))
        elif step.kind == pb.ValueStep.LITERAL:
            found.append(Constant(_literal(step, pools)))
        elif step.kind not in _OPERATORS or len(found) < 2:
            raise InvalidArgument(
                f"an expression has a step of kind {step.kind} after {len(found)} values"
            )
        else:
            right, left = found.pop(), found.pop()
            found.append(arithmetic(_OPERATORS[step.kind], left, right))
    if len(found) != 1:
        raise InvalidArgument(f"an expression has {len(found)} values without an operation")
    return found[0]


def _literal(step: pb.ValueStep, pools: StoredPools | None) -> pa.Scalar:
    if step.pool and pools is not None:
        values = pools.at(step.pool, step.row)
    else:
        values = array_from_ipc(step.value_ipc)
    if len(values) != 1:
        raise InvalidArgument(f"a literal of an expression has {len(values)} values, not one")
    if not pa.types.is_null(values.type):
        check_stored("literal", values.type)
    return values[0]
