"""Checks of a table's definition. Pure; requests are not trusted.

A definition that passes can be opened and partitioned by every server without further checks.
"""

from collections.abc import Collection, Mapping, Sequence

from nyala.common.alteration import NOT_OURS
from nyala.common.errors import Corrupt, InvalidArgument, TooLarge
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import decode_keys, from_bytes
from nyala.common.partitioning.partition import (
    PARTITION_VERSION,
    KeyRange,
    PartitionSchema,
    TabletPartition,
    partitions,
)
from nyala.common.schema import Schema, from_arrow
from nyala.machines.tables import QUOTA_OPTION, quota_of
from nyala.tablet.files.columns import compression_of
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

MAX_NAME_BYTES = 256
MAX_REPLICAS = 7
MAX_TEXT_BYTES = 65_536
"""Maximum bytes of comment, owner and each option."""
MAX_HASH_LEVELS = 8
WITNESS_FIRST = "witness_first"
HISTORY_OPTION = "history_max_age_s"
TABLE_OPTIONS = ("compression", HISTORY_OPTION, QUOTA_OPTION, WITNESS_FIRST)
"""Names of the options of a table."""
MAX_AGE_DIGITS = 10


def with_defaults(asked: pb.TableSpec, default_replicas: int, what: str) -> pb.TableSpec:
    """Return a new definition with its number of replicas, and without what only the masters set.

    Args:
        asked: definition in the request.
        default_replicas: where it names no number.
        what: name of its kind.

    Raises:
        InvalidArgument: not a number of replicas.
    """
    if asked.replicas:
        check_replicas(asked.replicas, what)
    spec = pb.TableSpec()
    spec.CopyFrom(asked)
    spec.replicas = asked.replicas or default_replicas
    spec.ClearField("ranges_version")
    return spec


def checked_columns(spec: pb.TableSpec, max_tablets: int) -> list[TabletPartition]:
    """Check the columns of a new table; return its partitions, by default one.

    Args:
        spec: its definition; changed in place.
        max_tablets: the most that one table may be created with.

    Raises:
        InvalidArgument: columns or partitioning are invalid; the message says why.
    """
    schema = _schema(spec.schema)
    if not spec.HasField("partition"):
        spec.partition.CopyFrom(convert.partition_schema_to_proto(PartitionSchema()))
    return check_partitions(schema, spec.partition, max_tablets)


def check_replicas(replicas: int, what: str) -> None:
    """Check a number of replicas.

    Args:
        replicas: of each tablet.
        what: name of the kind that has them.

    Raises:
        InvalidArgument: even, none or too many.
    """
    if replicas > MAX_REPLICAS or replicas % 2 == 0:
        raise InvalidArgument(
            f"{replicas} replicas; a {what} has an odd number of them from 1 to {MAX_REPLICAS}, "
            "since an even number tolerates no more failures; choose one of these"
        )


def check_name(name: str, what: str) -> None:
    """Check the name of a table or journal.

    Args:
        name: to check.
        what: name of its kind.

    Raises:
        InvalidArgument: empty, too long, or with characters that do not print.
    """
    if not name or len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise InvalidArgument(
            f"the {what} name {name[:40]!r}: a name is 1 to {MAX_NAME_BYTES} bytes of printable text; "
            "choose another"
        )


def check_option(key: str, options: Collection[str], what: str) -> None:
    """Check the name of an option of a table or journal.

    Args:
        key: name of the option.
        options: those there are.
        what: name of the kind.

    Raises:
        InvalidArgument: names those there are.
    """
    if key not in options:
        known = ", ".join(sorted(options))
        raise InvalidArgument(f"no {what} option {key[:40]!r}; the options are: {known}")


def check_texts(asked: pb.TableSpec, options: Collection[str], what: str) -> None:
    """Check name, comment, owner, and the options' names and sizes.

    Args:
        asked: definition of a table or journal.
        options: names of the options that it may have.
        what: name of its kind.

    Raises:
        InvalidArgument: an option that is not there, a text that is too long.
    """
    check_name(asked.name, what)
    texts = {"comment": asked.comment, "owner": asked.owner}
    for key in sorted(asked.options):
        check_option(key, options, what)
        texts[f"option {key}"] = asked.options[key]
    for text_of, text in texts.items():
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise InvalidArgument(
                f"the {text_of} is over {MAX_TEXT_BYTES} bytes, and every master keeps it in memory; write a "
                "shorter one"
            )


def check_size(spec: pb.TableSpec, limit: int, before: int = 0) -> None:
    """Check that the catalog can hold a definition, beside an earlier one, in one batch.

    Args:
        spec: the definition.
        limit: maximum bytes; 0: any.
        before: bytes of the definition that it replaces; one that does not grow passes.

    Raises:
        TooLarge: names the size and the limit.
    """
    size = spec.ByteSize()
    if limit and size > max(limit, before):
        raise TooLarge(
            f"the definition of {spec.name!r} would have {size} bytes, and the masters keep at most {limit} "
            "(half of catalog_batch_bytes, or of write_max_bytes if that is smaller); use fewer ranges or "
            "columns, or shorter texts",
            {"limit": str(limit), "size": str(size)},
        )


def history_of(spec: pb.TableSpec, default_s: int) -> int:
    """Return the seconds for which a table keeps its history.

    Args:
        spec: its definition.
        default_s: of a table without the option.
    """
    text = spec.options.get(HISTORY_OPTION)
    return default_s if text is None else int(text)


def check_options(options: Mapping[str, str]) -> None:
    """Check the values of a table's options.

    Raises:
        InvalidArgument: an option has no such value.
    """
    compression_of(options)
    age = options.get(HISTORY_OPTION, "0")
    if not (age.isascii() and age.isdecimal() and len(age) <= MAX_AGE_DIGITS):
        raise InvalidArgument(
            f"option {HISTORY_OPTION} is {age[:40]!r}; it is a whole number of seconds, from 0 on; "
            "write it in digits"
        )
    quota_of(options)
    first = options.get(WITNESS_FIRST, "off")
    if first not in ("on", "off"):
        raise InvalidArgument(
            f"option {WITNESS_FIRST} is {first[:40]!r}; it is on or off; write one of them"
        )


def _schema(asked: pb.Schema) -> Schema:
    """Return the schema, after checking that it equals the result of `from_arrow`, ids and order included.

    `schema_from_proto` has checked the key columns.
    """
    schema = convert.schema_from_proto(asked)
    keys = [schema.by_id[i].name for i in schema.key_ids]
    made = from_arrow(schema.arrow, keys)
    given = [(c.id, c.name, c.nullable) for c in schema.columns]
    if given != [(c.id, c.name, c.nullable) for c in made.columns]:
        raise InvalidArgument(
            "the columns of a new table stand in order, key columns first and not nullable, with ids "
            f"0, 1, 2, ...; {NOT_OURS}"
        )
    if any(c.read_default is not None for c in schema.columns):
        raise InvalidArgument(f"a new table has no rows that are older than a column; {NOT_OURS}")
    if schema.version != 0 or schema.next_column_id != len(schema.columns):
        raise InvalidArgument(
            f"a new table has schema version 0 and next column id {len(schema.columns)}, not "
            f"{schema.version} and {schema.next_column_id}; {NOT_OURS}"
        )
    return schema


def check_partitions(
    schema: Schema, asked: pb.PartitionSchema, max_tablets: int
) -> list[TabletPartition]:
    """Return the partitions of a partition schema.

    Args:
        schema: schema of the table.
        asked: the partition schema of the request.
        max_tablets: most tablets of one table.

    Raises:
        InvalidArgument: it does not fit the schema, or makes too many tablets.
    """
    ps = convert.partition_schema_from_proto(asked)
    if ps.version != PARTITION_VERSION:
        raise InvalidArgument(
            f"partition version {ps.version}: this build knows {PARTITION_VERSION}; {NOT_OURS}"
        )
    if len(ps.hash) > MAX_HASH_LEVELS:
        raise InvalidArgument(
            f"{len(ps.hash)} hash levels; a table has at most {MAX_HASH_LEVELS}; leave some out"
        )
    if not 1 <= ps.count <= max_tablets:
        raise InvalidArgument(
            f"this partitioning makes {ps.count} tablets; a table has 1 to {max_tablets} "
            "(option tablets_per_table_max); use fewer buckets or ranges"
        )
    used: list[ColumnId] = []
    for level in ps.hash:
        _check_columns(schema, level.column_ids, "hash level")
        used += level.column_ids
    if len(set(used)) != len(used):
        raise InvalidArgument(
            "one column is in two hash levels; each may be in one; take it out of the other"
        )
    if ps.range_column_ids:
        _check_columns(schema, ps.range_column_ids, "range level")
    check_ranges(schema, ps)
    return partitions(schema, ps)


def _check_columns(schema: Schema, ids: Sequence[ColumnId], what: str) -> None:
    if not ids or len(set(ids)) != len(ids) or any(i not in schema.key_ids for i in ids):
        raise InvalidArgument(
            f"a {what} has distinct key columns, one at least, and not {list(ids)}; {NOT_OURS}"
        )


def check_ranges(schema: Schema, ps: PartitionSchema) -> None:
    """Check that ranges have valid keys, are not empty and do not overlap.

    Raises:
        InvalidArgument: says which.
    """
    if ps.ranges and not ps.range_column_ids:
        raise InvalidArgument(f"ranges without range columns have no order; {NOT_OURS}")
    types = [schema.by_id[i].type for i in ps.range_column_ids]
    before: KeyRange | None = None
    for piece in ps.ranges:
        ends = [end for end in (piece.lower, piece.upper) if end is not None]
        try:
            decode_keys(from_bytes(ends), types)
        except Corrupt as err:
            raise InvalidArgument(
                f"a range bound is no key of its columns: {err}; give a value of each column's type"
            ) from err
        if len(ends) == 2 and ends[0] >= ends[1]:
            raise InvalidArgument(
                "a range is empty: its lower bound is not below its upper bound; swap or widen them"
            )
        if before is not None and (
            before.upper is None or piece.lower is None or piece.lower < before.upper
        ):
            raise InvalidArgument(
                "the ranges overlap, or do not stand in ascending order; cut or sort them"
            )
        before = piece
