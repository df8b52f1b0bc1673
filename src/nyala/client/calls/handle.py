"""TableHandle: an open table without its calls, for both interfaces."""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from nyala.client.calls.keys import KeyFinder
from nyala.client.checks import OtherNames
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.read.read_spec import key_names
from nyala.common.schema import Schema
from nyala.common.texts.counted import counted

SHOWN = 20
"""Most columns in the `repr` of a table."""


class TableHandle(OtherNames):
    """An open table, without its calls.

    Args:
        table: the open table.
        choices: that `create_table` made for data.
    """

    kind: ClassVar[str]
    """Name of the class in `repr`."""

    def __init__(self, table: OpenTable, choices: Sequence[str] = ()) -> None:
        self._table = table
        self._choices = tuple(choices)
        self._keys = KeyFinder(table)

    @property
    def primary_key(self) -> list[str]:
        """Names of the key columns, in key order."""
        return key_names(self._table.schema)

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
    def choices(self) -> tuple[str, ...]:
        """Choices that `create_table` made for data: types other than theirs, and index levels left out."""
        return self._choices

    @property
    def definition(self) -> Schema:
        """Columns with ids, defaults and types, as the masters have them."""
        return self._table.schema

    @property
    def known(self) -> OpenTable:
        """The table's columns, ranges and tablets as this client knows them."""
        return self._table

    def __repr__(self) -> str:
        schema = self._table.schema
        columns = "".join(
            f"\n  {c.name}: {c.type}{' key' if c.id in schema.key_ids else ''}"
            for c in schema.columns[:SHOWN]
        ) + ("\n  ..." if len(schema.columns) > SHOWN else "")
        choices = "".join(f"\n  ({choice})" for choice in self._choices[:SHOWN])
        return f"<{self.kind} {self.name!r}, {counted(len(self._table.tablets), 'tablet')}>{columns}{choices}"
