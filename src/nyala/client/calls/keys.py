"""Keys of look-ups, encoded; one key of plain types without Arrow."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.read.read_spec import key_names, names_of
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.partitioning.plain_keys import PlainKeys
from nyala.common.schema import Schema

Columns = tuple[str, ...] | None
"""Names of the columns that are read; None: all."""


class LocatedKey(NamedTuple):
    """One key of a tablet that is known.

    Attributes:
        tablet: the tablet.
        encoded: the primary key.
        key: as given.
        schema: of the table, as the key was encoded.
    """

    tablet: TabletLocation
    encoded: bytes
    key: Mapping[str, Any]
    schema: Schema

    def as_batch(self) -> pa.RecordBatch:
        """Return the same key as a batch, for a read by scan token."""
        return to_batches([self.key], self.schema)[0].select(key_names(self.schema))


class KeyFinder:
    """Finds the tablets of keys. Used by any thread.

    Args:
        table: read from.
    """

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._keys: tuple[Schema, PartitionSchema, PlainKeys] | None = None

    def columns(self, columns: Sequence[str] | None) -> Columns:
        """Return the checked names of the columns that are read; None: all."""
        return names_of(self._table.schema, columns)

    def locate(self, key: Any) -> LocatedKey | None:
        """Return a key with its tablet; None: it is no single key of plain types in a known range.

        Raises:
            InvalidArgument: it is a value in place of a dict, or of a list of dicts.
        """
        schema = self._table.schema
        single = key[0] if isinstance(key, list | tuple) and key else key
        if isinstance(single, str | bytes | int | float):
            example = ", ".join(f"{name!r}: ..." for name in key_names(schema))
            raise InvalidArgument(
                f"a key is a dict of the key columns, not {single!r}; pass {{{example}}}, or a list of such "
                "dicts"
            )
        if not isinstance(key, Mapping):
            return None
        ps = self._table.partition_schema
        number, encoded = self._plain(ps).find(key) or (-1, b"")
        tablet = self._table.tablet_at(ps, number)
        return None if tablet is None else LocatedKey(tablet, encoded, key, schema)

    def batches(self, key: Any) -> list[pa.RecordBatch]:
        """Return one key or some keys as batches of the key columns.

        Raises:
            InvalidArgument: a key column is null.
        """
        schema = self._table.schema
        names = key_names(schema)
        given = [key] if isinstance(key, Mapping) else key
        batches = [b.select(names) for b in to_batches(given, schema)]
        if any(column.null_count for batch in batches for column in batch.columns):
            raise InvalidArgument("a key column is null; no row has such a key")
        return batches

    def _plain(self, ps: PartitionSchema) -> PlainKeys:
        schema, known = self._table.schema, self._keys
        if known is None or known[0] is not schema or known[1] is not ps:
            known = self._keys = schema, ps, PlainKeys(schema, ps)
        return known[2]
