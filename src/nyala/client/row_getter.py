"""Point reads of one table for the synchronous API: rows as dicts by primary key."""

from collections.abc import Mapping, Sequence
from typing import Any

from nyala.client.calls.keys import KeyFinder
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection


class RowGetter:
    """Looks rows up by key.

    Args:
        connection: runs the requests.
        table: read from.
    """

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        self._connection = connection
        self._table = table
        self._keys = KeyFinder(table)

    def get(
        self, key: Mapping[str, Any] | Sequence[Mapping[str, Any]], columns: Sequence[str] | None
    ) -> dict[str, Any] | list[dict[str, Any] | None] | None:
        """See `Table.get`."""
        wanted = self._keys.columns(columns)
        found = self._keys.locate(key)
        if found is not None:
            return self._connection.get(
                self._table, found.tablet, found.encoded, wanted, found.as_batch
            )
        core = self._connection.core
        rows: list[dict[str, Any] | None] = []
        for batch in self._keys.batches(key):
            rows += self._connection.run(core.get(self._table, batch, wanted))
        return rows[0] if isinstance(key, Mapping) else rows
