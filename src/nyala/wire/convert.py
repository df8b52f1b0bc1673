"""Conversion of common values to and from protobuf messages. Input is validated, not trusted.

Single values (defaults, literals) are encoded by `wire/values.py`.
"""

import pyarrow as pa

from nyala.common.alteration import check_schema
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.comparison import check_comparable
from nyala.common.expressions.patterns import check_pattern
from nyala.common.expressions.predicate import (
    UNKNOWN,
    And,
    Compare,
    CompareOp,
    CompareValues,
    Const,
    In,
    IsNull,
    IsNullValue,
    Like,
    Not,
    Or,
    Predicate,
    Prefix,
)
from nyala.common.ids import ColumnId, OpId, ServerUuid
from nyala.common.partitioning.partition import (
    HashLevel,
    KeyRange,
    PartitionSchema,
    TabletPartition,
)
from nyala.common.schema import Column, Schema
from nyala.common.types import arrow_type, type_name
from nyala.raft.membership import Configuration, Member
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import (
    LiteralPools,
    StoredPools,
    array_from_ipc,
    array_to_ipc,
    expression_from_proto,
    expression_to_proto,
    value_from_ipc,
    value_to_ipc,
)

MAX_PREDICATE_DEPTH = 90
"""Maximum depth of a predicate; protobuf reads at most 100 nested messages, and tokens contain predicates."""
MAX_PREDICATE_NODES = 300_000

POOLED_NODES = 200
"""Number of nodes above which a predicate has its literals in pools, which older servers do not read."""

_COMPARISONS = {
    CompareOp.EQ: pb.Predicate.EQ,
    CompareOp.NE: pb.Predicate.NE,
    CompareOp.LT: pb.Predicate.LT,
    CompareOp.LE: pb.Predicate.LE,
    CompareOp.GT: pb.Predicate.GT,
    CompareOp.GE: pb.Predicate.GE,
}
_OPS = {kind: op for op, kind in _COMPARISONS.items()}


def schema_to_proto(schema: Schema) -> pb.Schema:
    """Return the message of a schema."""
    return pb.Schema(
        version=schema.version,
        columns=[column_to_proto(c) for c in schema.columns],
        key_ids=schema.key_ids,
        next_column_id=schema.next_column_id,
    )


def column_to_proto(column: Column) -> pb.Column:
    """Return the message of a column."""
    return pb.Column(
        id=column.id,
        name=column.name,
        type=type_name(column.type),
        nullable=column.nullable,
        default_ipc=value_to_ipc(column.default),
        immutable=column.immutable,
        comment=column.comment,
        read_default_ipc=value_to_ipc(column.read_default),
    )


def schema_from_proto(message: pb.Schema) -> Schema:
    """Return the schema of a message.

    Raises:
        InvalidArgument: an unknown type, a default that is not one value of the column's type, or
            what `check_schema` refuses.
    """
    columns = tuple(column_from_proto(c) for c in message.columns)
    keys = tuple(ColumnId(i) for i in message.key_ids)
    schema = Schema(columns, keys, message.version, message.next_column_id)
    check_schema(schema)
    return schema


def column_from_proto(message: pb.Column) -> Column:
    """Return the column of a message; only its type and defaults are validated.

    Raises:
        InvalidArgument: an unknown type, or a default that is not one value of it.
    """
    kind = arrow_type(message.type)
    default = value_from_ipc(message.default_ipc, message.name, kind)
    if default is not None and not default.is_valid:
        raise InvalidArgument(
            f"the default of column {message.name[:80]!r} is null; omit the default instead"
        )
    return Column(
        ColumnId(message.id),
        message.name,
        kind,
        message.nullable,
        default,
        message.immutable,
        value_from_ipc(message.read_default_ipc, message.name, kind),
        message.comment,
    )


def partition_schema_to_proto(ps: PartitionSchema) -> pb.PartitionSchema:
    """Return the message of a partition schema."""
    return pb.PartitionSchema(
        version=ps.version,
        hash=[
            pb.HashLevel(column_ids=level.column_ids, buckets=level.buckets, seed=level.seed)
            for level in ps.hash
        ],
        range_column_ids=ps.range_column_ids,
        ranges=[range_to_proto(r) for r in ps.ranges],
    )


def partition_schema_from_proto(message: pb.PartitionSchema) -> PartitionSchema:
    """Return the partition schema of a message, not validated: the master validates it with its table."""
    levels = tuple(
        HashLevel(tuple(ColumnId(i) for i in level.column_ids), level.buckets, level.seed)
        for level in message.hash
    )
    columns = tuple(ColumnId(i) for i in message.range_column_ids)
    ranges = tuple(range_from_proto(r) for r in message.ranges)
    return PartitionSchema(levels, columns, ranges, message.version)


def partition_to_proto(partition: TabletPartition) -> pb.Partition:
    """Return the message of one tablet's partition."""
    return pb.Partition(buckets=partition.buckets, range=range_to_proto(partition.range))


def partition_from_proto(message: pb.Partition) -> TabletPartition:
    """Return one tablet's partition; equal to the one that was sent, so that it can be a lookup key."""
    return TabletPartition(tuple(message.buckets), range_from_proto(message.range))


def range_to_proto(range_: KeyRange) -> pb.RangePartition:
    """Return the message of a range."""
    return pb.RangePartition(lower=_end_to_proto(range_.lower), upper=_end_to_proto(range_.upper))


def _end_to_proto(key: bytes | None) -> pb.RangeBound:
    return pb.RangeBound(unbounded=True) if key is None else pb.RangeBound(key=key)


def range_from_proto(message: pb.RangePartition) -> KeyRange:
    """Return the range of a message, not validated."""
    return KeyRange(
        _end_from_proto(message.lower) if message.HasField("lower") else None,
        _end_from_proto(message.upper) if message.HasField("upper") else None,
    )


def _end_from_proto(message: pb.RangeBound) -> bytes | None:
    return None if message.unbounded else message.key


def predicate_to_proto(tree: Predicate) -> pb.Predicate:
    """Return the message of a predicate."""
    pools = LiteralPools() if _exceeds(tree, POOLED_NODES) else None
    message = _message(tree, pools)
    if pools is not None:
        message.pools_ipc.extend(pools.stored())
    return message


def _exceeds(tree: Predicate, most: int) -> bool:
    """Return whether a tree has more nodes than a number."""
    waiting = [tree]
    for found in waiting:
        if isinstance(found, And | Or):
            waiting.extend(found.children)
        elif isinstance(found, Not):
            waiting.append(found.child)
        if len(waiting) > most:
            return True
    return False


def _message(tree: Predicate, pools: LiteralPools | None) -> pb.Predicate:
    kinds = pb.Predicate
    match tree:
        case And(children) | Or(children):
            kind = kinds.AND if isinstance(tree, And) else kinds.OR
            return pb.Predicate(kind=kind, children=[_message(c, pools) for c in children])
        case Not(child):
            return pb.Predicate(kind=kinds.NOT, children=[_message(child, pools)])
        case Const(value):
            return pb.Predicate(
                kind=kinds.UNKNOWN if value is None else kinds.TRUE if value else kinds.FALSE
            )
        case IsNull(column_id):
            return pb.Predicate(kind=kinds.IS_NULL, column_id=column_id)
        case Compare(column_id, op, literal):
            if pools is not None:
                pool, row = pools.add(literal)
                return pb.Predicate(kind=_COMPARISONS[op], column_id=column_id, pool=pool, row=row)
            stored = array_to_ipc(pa.repeat(literal, 1))
            return pb.Predicate(kind=_COMPARISONS[op], column_id=column_id, values_ipc=stored)
        case In(column_id, values):
            return pb.Predicate(kind=kinds.IN, column_id=column_id, values_ipc=array_to_ipc(values))
        case Prefix(column_id, prefix):
            stored = array_to_ipc(pa.array([prefix]))
            return pb.Predicate(kind=kinds.PREFIX, column_id=column_id, values_ipc=stored)
        case CompareValues(op, left, right):
            sides = expression_to_proto(left, pools), expression_to_proto(right, pools)
            return pb.Predicate(kind=_COMPARISONS[op], left=sides[0], right=sides[1])
        case IsNullValue(operand):
            return pb.Predicate(kind=kinds.IS_NULL, left=expression_to_proto(operand, pools))
        case Like(operand, pattern, ignore_case):
            return pb.Predicate(
                kind=kinds.ILIKE if ignore_case else kinds.LIKE,
                left=expression_to_proto(operand, pools),
                pattern=pattern,
            )


def predicate_from_proto(message: pb.Predicate, schema: Schema) -> Predicate:
    """Return the predicate of a message, validated against the schema of its table.

    Raises:
        InvalidArgument: too deep or too large, an unknown kind or column id, children where there
            can be none, literals that are null or of another type than their column.
    """
    return _Reader(schema, StoredPools(message.pools_ipc)).read(message, 0)


class _Reader:
    """Decoder of one predicate tree; counts its nodes."""

    def __init__(self, schema: Schema, pools: StoredPools) -> None:
        self._schema = schema
        self._pools = pools
        self._nodes = 0

    def read(self, message: pb.Predicate, depth: int) -> Predicate:
        self._nodes += 1
        if depth > MAX_PREDICATE_DEPTH or self._nodes > MAX_PREDICATE_NODES:
            raise InvalidArgument(
                f"a predicate has at most {MAX_PREDICATE_DEPTH} levels and {MAX_PREDICATE_NODES} "
                "nodes; simplify it, "
                "or use several scans"
            )
        kinds = pb.Predicate
        kind = message.kind
        least, most = {kinds.AND: (2, None), kinds.OR: (2, None), kinds.NOT: (1, 1)}.get(
            kind, (0, 0)
        )
        count = len(message.children)
        if count < least or (most is not None and count > most):
            raise InvalidArgument(f"a predicate node of kind {kind} has {count} children")
        children = tuple(self.read(c, depth + 1) for c in message.children)
        if kind == kinds.AND:
            return And(children)
        if kind == kinds.OR:
            return Or(children)
        if kind == kinds.NOT:
            return Not(children[0])
        if kind in (kinds.TRUE, kinds.FALSE):
            return Const(kind == kinds.TRUE)
        if kind == kinds.UNKNOWN:
            return UNKNOWN
        return self._of_values(message) if message.HasField("left") else self._leaf(message)

    def _of_values(self, message: pb.Predicate) -> Predicate:
        self._nodes += len(message.left.steps) + len(message.right.steps)
        left = expression_from_proto(message.left, self._schema, self._pools)
        kind = message.kind
        if kind == pb.Predicate.IS_NULL:
            return IsNullValue(left)
        if kind in (pb.Predicate.LIKE, pb.Predicate.ILIKE) and left.type == pa.string():
            check_pattern(message.pattern)
            return Like(left, message.pattern, kind == pb.Predicate.ILIKE)
        if kind not in _OPS or not message.HasField("right"):
            raise InvalidArgument(f"no predicate of kind {kind} on a value of type {left.type}")
        right = expression_from_proto(message.right, self._schema, self._pools)
        check_comparable(left, right)
        return CompareValues(_OPS[kind], left, right)

    def _leaf(self, message: pb.Predicate) -> Predicate:
        column = self._schema.by_id.get(ColumnId(message.column_id))
        if column is None:
            raise InvalidArgument(
                f"a predicate names column id {message.column_id}, which the table does not have; "
                "its schema may have changed: open the table again"
            )
        if message.kind == pb.Predicate.IS_NULL:
            return IsNull(column.id)
        pooled = message.pool > 0
        values = (
            self._pools.at(message.pool, message.row)
            if pooled
            else array_from_ipc(message.values_ipc)
        )
        if values.type != column.type or values.null_count:
            raise InvalidArgument(
                f"a predicate on column {column.name!r} of type {column.type} has literals of type "
                f"{values.type}, {values.null_count} of them null"
            )
        if message.kind == pb.Predicate.IN:
            return In(column.id, values)
        if len(values) != 1:
            raise InvalidArgument(
                f"a predicate on column {column.name!r} has {len(values)} literals"
            )
        if message.kind in _OPS:
            return Compare(column.id, _OPS[message.kind], values[0])
        if message.kind == pb.Predicate.PREFIX and column.type == pa.string():
            return Prefix(column.id, values[0].as_py())
        raise InvalidArgument(
            f"no predicate of kind {message.kind} on column {column.name!r} of type {column.type}"
        )


def member_to_proto(member: Member) -> pb.Member:
    """Return the message of a Raft group's member."""
    return pb.Member(
        uuid=member.uuid,
        peer_address=member.peer_address,
        address=member.address,
        voter=member.voter,
        promote=member.promote,
        replace=member.replace,
        electable=member.electable,
    )


def member_from_proto(message: pb.Member) -> Member:
    """Return the member of a message."""
    return Member(
        ServerUuid(message.uuid),
        message.peer_address,
        message.address,
        message.voter,
        message.promote,
        message.replace,
        message.electable,
    )


def consensus_to_proto(
    config: Configuration, term: int, leader: ServerUuid | str | None
) -> pb.ConsensusState:
    """Return a replica's consensus state: configuration, term, and leader if known.

    Args:
        config: Raft configuration.
        term: current term.
        leader: uuid of the leader; None: unknown.
    """
    return pb.ConsensusState(
        term=term,
        leader=leader or "",
        config_term=config.id.term,
        config_index=config.id.index,
        members=[member_to_proto(m) for m in config.members],
        lost=config.lost,
    )


def configuration_from_proto(message: pb.ConsensusState) -> Configuration:
    """Return the configuration in a consensus state."""
    at = OpId(message.config_term, message.config_index)
    lost = tuple(ServerUuid(u) for u in message.lost)
    return Configuration(tuple(member_from_proto(m) for m in message.members), at, lost)
