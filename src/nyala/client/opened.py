"""What a table is: name, columns, tablets. The part of `Table` that neither reads nor writes rows."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletPlace
from nyala.client.connection import Connection
from nyala.common.partition import PartitionSchema
from nyala.common.plain_keys import PlainKeys
from nyala.common.schema import Schema

SHOWN = 20
"""Columns in what a notebook shows of a table."""


class OpenedTable:
    """A table as it was opened."""

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        self._connection = connection
        self._table = table
        self._keys: tuple[Schema, PartitionSchema, PlainKeys] | None = None

    @property
    def primary_key(self) -> list[str]:
        """Names of the key columns, in key order."""
        return [c.name for c in self._table.schema.key_columns]

    @property
    def name(self) -> str:
        """Name of the table when it was opened."""
        return self._table.name

    @property
    def id(self) -> str:
        """The table's id; a re-created table has another one."""
        return self._table.id

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of a row, key columns first."""
        return self._table.schema.arrow

    @property
    def definition(self) -> Schema:
        """Columns with ids, defaults and types, as the masters have them."""
        return self._table.schema

    def tablets(self) -> list[TabletPlace]:
        """Return the tablets and where they are now, asking the masters anew."""
        locations = self._connection.core.locations
        self._connection.run(locations.refresh(self._table))
        return list(self._table.tablets)

    def __repr__(self) -> str:
        schema = self._table.schema
        columns = "".join(
            f"\n  {c.name}: {c.type}{' key' if c.id in schema.key_ids else ''}"
            for c in schema.columns[:SHOWN]
        ) + ("\n  ..." if len(schema.columns) > SHOWN else "")
        return f"<nyala.Table {self.name!r}, {len(self._table.tablets)} tablets>{columns}"
