"""Look-ups by key, as users call them."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import pyarrow as pa

from nyala.client.opened import OpenedTable
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument
from nyala.common.partition import PartitionSchema
from nyala.common.plain_keys import PlainKeys
from nyala.common.schema import Schema


class TableGets(OpenedTable):
    """The part of `Table` that looks rows up."""

    @overload
    def get(
        self, key: Mapping[str, Any], columns: Sequence[str] | None = None
    ) -> dict[str, Any] | None: ...
    @overload
    def get(
        self, key: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any] | None]: ...
    def get(
        self,
        key: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        columns: Sequence[str] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any] | None] | None:
        """Look rows up by primary key; linearizable.

        Args:
            key: a dict of the key columns, or a list of them.
            columns: those wanted; None: all.

        Returns:
            The row as a dict, None if absent; for a list of keys, a list in the same order.
        """
        wanted = names_of(self._table.schema, columns)
        schema = self._table.schema
        many = not isinstance(key, Mapping)
        tablet = None
        if isinstance(key, Mapping):
            ps = self._table.partition_schema
            number, encoded = self._plain(ps).find(key) or (-1, b"")
            tablet = self._table.place(ps, number)
        if isinstance(key, Mapping) and tablet is not None:

            def as_batch() -> pa.RecordBatch:
                return to_batches([key], schema)[0].select(self.primary_key)

            return self._connection.get(self._table, tablet, encoded, wanted, as_batch)
        batches = [b.select(self.primary_key) for b in to_batches(key if many else [key], schema)]
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


def names_of(schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns that a reader wants, checked; None: all."""
    if columns is None:
        return None
    if isinstance(columns, str) or not columns:
        raise InvalidArgument(f"columns={columns!r}: pass a list of at least one column name")
    for name in columns:
        schema.column(name)
        if list(columns).count(name) > 1:
            raise InvalidArgument(f"column {name!r} is asked for twice")
    return tuple(columns)
