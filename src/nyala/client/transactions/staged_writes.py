"""Writes with `txn=`: the part that they stage into, and deletes by condition.

A condition is evaluated by the tablets when the transaction commits, so it selects the rows that its commit
time finds. It is staged in each tablet that may have such rows by the table's present ranges; if these have
changed by the commit, the masters refuse it.
"""

import asyncio

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.deadline import Attempts
from nyala.client.write.staging import PartStage, StagingTarget
from nyala.common.errors import InvalidArgument, TransactionDenied
from nyala.common.expressions.where import parse
from nyala.common.partitioning.partition import prune
from nyala.common.schema import arrow_schema
from nyala.wire.proto import nyala_pb2 as pb


def part_of(core: ClientCore, txn: StagingTarget | None) -> PartStage | None:
    """Return the part that a write with `txn=` stages into; None: it takes effect by itself.

    Raises:
        InvalidArgument: it is no transaction, one of another client, or one that has ended.
    """
    if txn is None:
        return None
    if not callable(getattr(txn, "part_for", None)):
        raise InvalidArgument(
            f"txn={txn!r}: pass what client.transaction() returns, or a part of it"
        )
    return txn.part_for(core.session.staging)


async def stage_delete(core: ClientCore, table: OpenTable, where: str, stage: PartStage) -> None:
    """Stage a delete of the rows that a condition selects at the commit time.

    Args:
        core: the client.
        table: the table; its present columns and ranges are read from the masters.
        where: as for `Table.scan`.
        stage: part of the transaction.

    Raises:
        InvalidArgument, NotFound: the condition is none of this table; nothing was staged.
        TransactionDenied: a tablet refused it; the transaction cannot be committed.
        TimedOut: a tablet or the masters did not answer in time; the transaction cannot be committed.
    """
    stage.check_open()
    attempts = Attempts(core.env, core.options.timeout_ms)
    now = await core.locations.open("", core.options.timeout_ms, table_id=table.id)
    predicate = parse(where, now.schema)
    every = [t.partition for t in now.tablets]
    wanted = set(prune(now.schema, now.partition_schema, every, predicate))
    keys = pa.RecordBatch.from_pylist([], schema=arrow_schema(now.schema.key_columns))
    with stage.writing(now):
        stage.cover(now)
        results = await asyncio.gather(
            *(
                stage.deliver(now, t, pb.DELETE_WHERE, keys, False, attempts, where=where)
                for t in now.tablets
                if t.partition in wanted
            )
        )
    for result in results:
        if result.row_errors:
            raise TransactionDenied(
                f"the condition on table {now.name!r} was refused: {result.row_errors[0].message}"
            )
