"""The steps of an alteration: from a table's old definition to the new one. Pure; requests are not trusted.

A change that tablets have to apply (columns, options, name) or that clients have to follow (ranges)
increments the schema version; a comment or an owner does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from nyala.common import alteration
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.partitioning.partition import (
    EVERYTHING,
    KeyRange,
    PartitionSchema,
    TabletPartition,
    describe,
)
from nyala.common.schema import Schema
from nyala.common.types import arrow_type
from nyala.master.ddl import kinds, table_spec
from nyala.master.ddl.kinds import KindRules
from nyala.master.ddl.placement import require_servers
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import array_from_ipc, value_from_ipc

MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Rules:
    """Circumstances that limit a definition.

    Attributes:
        max_tablets: maximum number of tablets of one table.
        servers: number of live tablet servers that take replicas.
        opening: number of further live servers that are still opening their replicas.
    """

    max_tablets: int
    servers: int
    opening: int = 0


@dataclass(frozen=True, slots=True)
class Altered:
    """Result of the steps of an alteration.

    Attributes:
        spec: the new definition; equal to the old one when nothing changes.
        added: ranges that get new tablets.
        dropped: ranges whose tablets are retired.
    """

    spec: pb.TableSpec
    added: tuple[KeyRange, ...] = ()
    dropped: tuple[KeyRange, ...] = ()


def take(before: pb.TableSpec, steps: Sequence[pb.AlterStep], rules: Rules) -> Altered:
    """Apply all steps in order, each to the result of the one before.

    Args:
        before: the definition now.
        steps: in the order in which they apply.
        rules: limits of a definition.

    Raises:
        InvalidArgument: no steps, or an invalid one, which the message names.
        NotFound: a column or range does not exist.
        AlreadyPresent: a column has the name.
    """
    if not 1 <= len(steps) <= MAX_STEPS:
        raise InvalidArgument(
            f"{len(steps)} steps; an alteration has 1 to {MAX_STEPS}; make several alterations"
        )
    kind = kinds.rules_of(before.kind)
    spec = pb.TableSpec()
    spec.CopyFrom(before)
    columns: list[alteration.Step] = []
    for step in steps:
        kind.check_step(step)
        columns += _columns(step)
        _texts(spec, step, kind)
        _replicas(spec, step, rules, kind.machine.name)
    kind.check_texts(spec)
    if columns:
        _alter_columns(spec.schema, convert.schema_from_proto(before.schema), columns)
    made = _take_ranges(before, spec, steps, rules)
    if _changes_tablets(before, spec) or made.added or made.dropped:
        spec.schema.version = before.schema.version + 1
    if made.added or made.dropped:
        spec.ranges_version = spec.schema.version
    return made


def _changes_tablets(before: pb.TableSpec, after: pb.TableSpec) -> bool:
    """Return whether tablets have to apply a change."""
    one, other = before.schema, after.schema
    requested = before.name != after.name or before.options != after.options
    return requested or one.columns != other.columns or one.next_column_id != other.next_column_id


def _alter_columns(message: pb.Schema, schema: Schema, steps: Sequence[alteration.Step]) -> None:
    """Apply column steps to a schema message, keeping its version and fields of newer releases."""
    made = convert.schema_to_proto(alteration.alter(schema, steps))
    kept = {c.id: pb.Column.FromString(c.SerializeToString()) for c in message.columns}
    message.next_column_id = made.next_column_id
    del message.columns[:]
    for requested in made.columns:
        column = message.columns.add()
        if requested.id in kept:
            column.CopyFrom(kept[requested.id])
            _clear_known(column)
        column.MergeFrom(requested)


def _clear_known(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        message.ClearField(field.name)


def _columns(step: pb.AlterStep) -> list[alteration.Step]:
    """Return the column steps of a step; none for a step of another kind."""
    match step.WhichOneof("step"):
        case "add_column":
            return _added(step.add_column)
        case "drop_column":
            return [alteration.DropColumn(step.drop_column)]
        case "rename_column":
            rename = step.rename_column
            return [alteration.RenameColumn(rename.name, rename.new_name)]
        case "set_default":
            values = array_from_ipc(step.set_default.ipc) if step.set_default.ipc else None
            if values is not None and len(values) != 1:
                raise InvalidArgument(
                    f"a default is one value, not {len(values)}; {alteration.NOT_OURS}"
                )
            default = None if values is None or not values[0].is_valid else values[0]
            return [alteration.SetDefault(step.set_default.name, default)]
        case "allow_nulls":
            return [alteration.AllowNulls(step.allow_nulls)]
        case "column_comment":
            text = step.column_comment
            return [alteration.SetComment(text.name, text.text)]
        case None:
            raise InvalidArgument(
                f"an empty step, or one that this build does not know; {alteration.NOT_OURS}"
            )
    return []


def _added(column: pb.Column) -> list[alteration.Step]:
    kind = arrow_type(column.type)
    default = value_from_ipc(column.default_ipc, column.name, kind)
    value = None if default is None or not default.is_valid else default
    steps: list[alteration.Step] = [
        alteration.AddColumn(column.name, kind, column.nullable, value, column.immutable)
    ]
    if column.comment:
        steps.append(alteration.SetComment(column.name, column.comment))
    return steps


def _texts(spec: pb.TableSpec, step: pb.AlterStep, kind: KindRules) -> None:
    match step.WhichOneof("step"):
        case "rename_table":
            spec.name = step.rename_table
        case "table_comment":
            spec.comment = step.table_comment
        case "owner":
            spec.owner = step.owner
        case "option" if step.option.text:
            spec.options[step.option.name] = step.option.text
        case "option":
            table_spec.check_option(step.option.name, kind.options, kind.machine.name)
            spec.options.pop(step.option.name, None)


def _replicas(spec: pb.TableSpec, step: pb.AlterStep, rules: Rules, what: str) -> None:
    """Set the number of replicas; a larger number needs a live server for each."""
    if step.WhichOneof("step") != "replicas":
        return
    table_spec.check_replicas(step.replicas, what)
    if step.replicas > spec.replicas:
        require_servers(step.replicas, rules.servers, rules.opening)
    spec.replicas = step.replicas


def _take_ranges(
    before: pb.TableSpec, spec: pb.TableSpec, steps: Sequence[pb.AlterStep], rules: Rules
) -> Altered:
    """Add and drop ranges, by the old columns: the types of key columns never change."""
    if not any(s.WhichOneof("step") in ("add_range", "drop_range") for s in steps):
        return Altered(spec)
    schema = convert.schema_from_proto(before.schema)
    ps = convert.partition_schema_from_proto(spec.partition)
    ps = replace(ps, ranges=ps.all_ranges if ps.range_column_ids else ())
    added: list[KeyRange] = []
    dropped: list[KeyRange] = []
    for step in steps:
        kind = step.WhichOneof("step")
        if kind == "add_range":
            piece = convert.range_from_proto(step.add_range)
            ps = _with_range(schema, ps, piece)
            added.append(piece)
        elif kind == "drop_range":
            piece = convert.range_from_proto(step.drop_range)
            ps = _without_range(schema, ps, piece)
            (added.remove if piece in added else dropped.append)(piece)
    if not added and not dropped:
        return Altered(spec)
    if not ps.ranges:
        raise InvalidArgument(
            "no range would be left, and a table keeps one range at least; drop the table instead"
        )
    kept = {convert.range_from_proto(r): r for r in before.partition.ranges}
    del spec.partition.ranges[:]
    spec.partition.ranges.extend(kept.get(r) or convert.range_to_proto(r) for r in ps.ranges)
    table_spec.check_partitions(schema, spec.partition, rules.max_tablets)
    return Altered(spec, tuple(added), tuple(dropped))


def _with_range(schema: Schema, ps: PartitionSchema, piece: KeyRange) -> PartitionSchema:
    _check_range(schema, ps, piece)
    for other in ps.ranges:
        if _overlap(piece, other):
            raise InvalidArgument(
                f"the range {_words(schema, ps, piece)} overlaps {_words(schema, ps, other)}, which the "
                "table has; drop that first, or choose bounds beside it"
            )
    ranges = sorted((*ps.ranges, piece), key=lambda r: (r.lower is not None, r.lower or b""))
    return replace(ps, ranges=tuple(ranges))


def _without_range(schema: Schema, ps: PartitionSchema, piece: KeyRange) -> PartitionSchema:
    _check_range(schema, ps, piece)
    if piece not in ps.ranges:
        existing = ", ".join(_words(schema, ps, r) for r in ps.ranges[:10]) or "one, without bounds"
        raise NotFound(
            f"no range {_words(schema, ps, piece)}; a range is dropped whole, by its own bounds; "
            f"choose one of: {existing}"
        )
    return replace(ps, ranges=tuple(r for r in ps.ranges if r != piece))


def _check_range(schema: Schema, ps: PartitionSchema, piece: KeyRange) -> None:
    if not ps.range_column_ids:
        raise InvalidArgument(
            "the table is not partitioned by range, so it has no ranges to alter; make a new table with "
            "nyala.Range"
        )
    table_spec.check_ranges(schema, replace(ps, ranges=(piece,)))


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    def below(upper: bytes | None, lower: bytes | None) -> bool:
        return upper is not None and lower is not None and upper <= lower

    return not (below(one.upper, other.lower) or below(other.upper, one.lower))


def _words(schema: Schema, ps: PartitionSchema, piece: KeyRange) -> str:
    whole = replace(ps, hash=())
    return (
        "of everything"
        if piece == EVERYTHING
        else describe(schema, whole, TabletPartition((), piece))
    )
