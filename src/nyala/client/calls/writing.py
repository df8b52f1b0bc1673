"""Writes as coroutines on the client's loop: one batch, or a stream of them."""

from collections.abc import Awaitable, Callable, Iterator

import pyarrow as pa

from nyala.client.calls.rows import PreparedRows
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.results import WriteResult
from nyala.client.write.pending_call import Written
from nyala.client.write.staging import PartStage
from nyala.client.write.upload import Upload
from nyala.env.tasks import Lane

INLINE_ROWS = 1_000
"""Most dicts that are converted on the loop's own thread: they take a few milliseconds."""

Fetch = Callable[[], Awaitable[pa.RecordBatch | None]]
"""Return the next batch of a write; None: there are no more."""


async def write_rows(
    core: ClientCore, table: OpenTable, rows: PreparedRows, stage: PartStage | None
) -> WriteResult:
    """Write rows, and return when they are durable; raises as `Table.upsert`.

    Data of more than `INLINE_ROWS` rows are converted, and the pieces of a stream are fetched, in the lane
    COMPUTE.

    Args:
        core: the client.
        table: written to.
        rows: the rows.
        stage: part of a transaction in which they are staged; None: they take effect.
    """
    made = None
    if rows.in_memory:
        few = isinstance(rows.data, list | tuple) and len(rows.data) <= INLINE_ROWS
        made = rows.converted() if few else await core.env.tasks.run(Lane.COMPUTE, rows.converted)
    timeout_ms = core.options.timeout_ms
    if made is not None and len(made) == 1 and not rows.watch.active and stage is None:
        done = await core.session.write(
            table, rows.op, made[0], all_or_nothing=rows.all_or_nothing, timeout_ms=timeout_ms
        )
        return rows.result(done)
    fetch = _fetcher(core, rows.batches(made))
    with rows.watch:
        begin = (stage or core.session).begin
        upload = await begin(
            table, rows.op, all_or_nothing=rows.all_or_nothing, timeout_ms=timeout_ms
        )
        if stage is None:
            return rows.result(await _upload(upload, fetch))
        with stage.writing(table) as noted:
            done = await _upload(upload, fetch)
            noted.append(done)
        return rows.result(done)


def _fetcher(core: ClientCore, batches: Iterator[pa.RecordBatch]) -> Fetch:
    async def fetch() -> pa.RecordBatch | None:
        return await core.env.tasks.run(Lane.COMPUTE, next, batches, None)

    return fetch


async def _upload(upload: Upload, fetch: Fetch) -> Written:
    """Write what `fetch` returns; raises as `Connection.upload`.

    Args:
        upload: the write, which has begun.
        fetch: returns the next batch.
    """
    try:
        while True:
            try:
                batch = await fetch()
            except Exception as err:  # of the caller's own making
                failure = await upload.stop(err)
                if failure is err:
                    raise
                raise failure from err
            if batch is None:
                return await upload.finish()
            await upload.take(batch)
    finally:  # also when the caller is cancelled
        upload.abandon()
