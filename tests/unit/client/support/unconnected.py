"""A table whose client has no connection."""

from types import SimpleNamespace

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.table import Table
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.schema import Schema


def unconnected_table(schema: Schema) -> Table:
    """Return a table of which reads can be described; a request raises AttributeError."""
    opened = OpenTable(TableId("a" * 32), "t", schema, PartitionSchema(), 3, {})
    core = SimpleNamespace(plan=lambda table, spec: None)
    return Table(SimpleNamespace(core=core, call=(core, None)), opened)  # type: ignore[arg-type]
