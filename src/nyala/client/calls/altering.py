"""Alterations of an open table as coroutines on the client's loop, where other calls read the table."""

from collections.abc import Sequence

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.wire.proto import nyala_pb2 as pb


async def update_table(core: ClientCore, table: OpenTable) -> None:
    """Read the present definition of a table from the masters.

    Args:
        core: the client.
        table: follows the definition.
    """
    table.follow(await core.locations.open("", core.options.timeout_ms, table_id=table.id))


async def alter_table(core: ClientCore, table: OpenTable, steps: Sequence[pb.AlterStep]) -> None:
    """Alter a table, and return when it is up to date; raises as `Alter.commit`.

    Args:
        core: the client.
        table: the table.
        steps: take effect together, or not.
    """
    table.follow(await core.ddl.alter_table(table, list(steps)))
