"""Definition of an open table, as backups and copies need it."""

from nyala.backup.definition import SavedDefinition
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection


def definition_of(connection: Connection, opened: OpenTable) -> SavedDefinition:
    """Return what a table has beside its columns.

    Args:
        connection: to the cluster.
        opened: the table, with its ranges as they were looked up last.
    """
    described = connection.run(connection.core.describe(opened.name)).table
    dropped = {(t.partition.range, t.dropped_at) for t in opened.dropped if t.dropped_at}
    ordered = sorted(dropped, key=lambda d: (d[1], d[0].lower or b""))
    return SavedDefinition(
        opened.partition_schema, tuple(ordered), described.replicas, dict(described.options),
        described.comment, described.owner,
    )  # fmt: skip
