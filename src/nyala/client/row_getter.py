"""Point reads of one table: rows as dicts by primary key."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.read.read_spec import key_names, names_of
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument
from nyala.common.partition import PartitionSchema
from nyala.common.plain_keys import PlainKeys
from nyala.common.schema import Schema


class RowGetter:
    """Looks rows up by key. One key of plain types is encoded without Arrow.

    Args:
        connection: runs the requests.
        table: read from.
    """

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        self._connection = connection
        self._table = table
        self._keys: tuple[Schema, PartitionSchema, PlainKeys] | None = None

    def get(
        self, key: Mapping[str, Any] | Sequence[Mapping[str, Any]], columns: Sequence[str] | None
    ) -> dict[str, Any] | list[dict[str, Any] | None] | None:
        """See `Table.get`."""
        wanted = names_of(self._table.schema, columns)
        schema = self._table.schema
        many = not isinstance(key, Mapping)
        single = key[0] if isinstance(key, list | tuple) and key else key
        if isinstance(single, str | bytes | int | float):
            example = ", ".join(f"{name!r}: ..." for name in key_names(schema))
            raise InvalidArgument(
                f"a key is a dict of the key columns, not {single!r}; pass {{{example}}}, or a list of such "
                "dicts"
            )
        tablet = None
        if isinstance(key, Mapping):
            ps = self._table.partition_schema
            number, encoded = self._plain(ps).find(key) or (-1, b"")
            tablet = self._table.tablet_at(ps, number)
        if isinstance(key, Mapping) and tablet is not None:

            def as_batch() -> pa.RecordBatch:
                return to_batches([key], schema)[0].select(key_names(schema))

            return self._connection.get(self._table, tablet, encoded, wanted, as_batch)
        names = key_names(schema)
        batches = [b.select(names) for b in to_batches(key if many else [key], schema)]
        core = self._connection.core
        found: list[dict[str, Any] | None] = []
        for batch in batches:
            if any(column.null_count for column in batch.columns):
                raise InvalidArgument("a key column is null; no row has such a key")
            found += self._connection.run(core.get(self._table, batch, wanted))
        return found if many else found[0]

    def _plain(self, ps: PartitionSchema) -> PlainKeys:
        schema, known = self._table.schema, self._keys
        if known is None or known[0] is not schema or known[1] is not ps:
            known = self._keys = schema, ps, PlainKeys(schema, ps)
        return known[2]
