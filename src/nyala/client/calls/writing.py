"""Writes as coroutines over a `Caller`: one batch, or a stream of them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from operator import methodcaller

import pyarrow as pa

from nyala.client.caller import Caller
from nyala.client.calls.rows import PreparedRows
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.results import PartlyWritten, WriteResult
from nyala.client.write.pending_call import Written
from nyala.client.write.staging import PartStage
from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown

INLINE_ROWS = 1_000
"""Most dicts that are converted on the loop's own thread: they take a few milliseconds."""


Batches = Iterator[pa.RecordBatch] | AsyncGenerator[pa.RecordBatch, None]
Fetch = Callable[[], Awaitable[pa.RecordBatch | None]]


async def write_rows(
    core: ClientCore, caller: Caller, table: OpenTable, rows: PreparedRows, stage: PartStage | None
) -> WriteResult:
    """Write rows, and return when they are durable; raises as `Table.upsert`.

    A coroutine has data of more than `INLINE_ROWS` rows converted, and the pieces of a stream fetched, in a
    thread.

    Args:
        core: the client.
        caller: makes the call.
        table: written to.
        rows: the rows.
        stage: part of a transaction in which they are staged; None: they take effect.
    """
    made = None
    if rows.in_memory:
        few = isinstance(rows.data, list | tuple) and len(rows.data) <= INLINE_ROWS
        made = rows.converted() if few else await caller.compute(rows.converted)
    return await write_converted(core, caller, table, rows, made, stage)


async def write_converted(
    core: ClientCore, caller: Caller, table: OpenTable, rows: PreparedRows,
    made: list[pa.RecordBatch] | None, stage: PartStage | None,
) -> WriteResult:  # fmt: skip
    """Write rows that are converted, or those of a stream; see `write_rows`.

    Args:
        core: the client.
        caller: makes the call.
        table: written to.
        rows: the rows.
        made: all of them, converted; None: a stream.
        stage: part of a transaction in which they are staged; None: they take effect.
    """
    if made is not None and len(made) == 1 and not rows.watch.active and stage is None:
        done = await core.session.write(
            table, rows.op, made[0], all_or_nothing=rows.all_or_nothing,
            timeout_ms=core.options.timeout_ms, caller=caller,
        )  # fmt: skip
        return rows.result(done)
    batches = (
        rows.awaited_batches(caller) if rows.is_awaited and caller.suspends else rows.batches(made)
    )
    whole = rows.all_or_nothing
    with rows.watch:
        if stage is None:
            return rows.result(await upload(core, caller, table, rows.op, batches, whole))
        with stage.writing(table) as noted:  # a failure, and any row error, refuse the commit
            done = await upload(core, caller, table, rows.op, batches, whole, stage)
            noted.append(done)
        return rows.result(done)


async def upload(
    core: ClientCore, caller: Caller, table: OpenTable, op: int, batches: Batches, all_or_nothing: bool,
    stage: PartStage | None = None,
) -> Written:  # fmt: skip
    """Write a stream of batches; the next one is fetched when the queue has room.

    Args:
        core: the client.
        caller: makes the call.
        table: the open table.
        op: a `WriteOp` of the wire.
        batches: in order; read as there is room. An asynchronous generator needs a caller on the loop.
        all_or_nothing: one failing row voids the others of its request.
        stage: part of a transaction in which the rows are staged; None: they take effect.

    Raises:
        PartlyWritten, NyalaError: as `Upload.finish`; also when the batches end in an error of their own
            after some were written.
        Exception: what fetching a batch raised; nothing took effect.
        KeyboardInterrupt, CancelledError: interrupted; its cause is PartlyWritten if rows are written, or may
            be. What a handler of another signal raises has it too.
    """
    fetch = _fetch(caller, batches)
    begin, timeout_ms = (stage or core.session).begin, core.options.timeout_ms
    work = await caller.change(
        begin(table, op, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms)
    )
    try:
        while True:
            try:
                batch = await fetch()
            except Exception as err:  # of the caller's own making
                failure = await caller.change(work.stop(err))
                if failure is err:
                    raise
                raise failure from err
            if batch is None:
                return await caller.change(work.finish())
            await caller.change(work.take(batch))
    except NyalaError as err:
        ended = isinstance(err, InvalidArgument | OutcomeUnknown) and caller.ended
        if ended and not isinstance(err, PartlyWritten):
            caller.join()  # until no task changes the outcome of a row
            raise work.closed_error() from err
        raise
    except GeneratorExit:  # the coroutine is dropped, and cannot wait for anything
        raise
    except BaseException as err:  # Ctrl-C, another signal, or a cancellation
        partly = await caller.change(work.interrupt(err))
        if partly is err:
            raise
        partly.__cause__ = None
        raise err from partly
    finally:  # also when interrupted
        if not caller.ended:
            caller.hand_over(methodcaller("abandon"), work)
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()


def _fetch(caller: Caller, batches: Batches) -> Fetch:
    """Return a function that returns the next batch, or None at their end."""
    if isinstance(batches, AsyncGenerator):
        return partial(anext, batches, None)
    return partial(caller.compute, next, batches, None)
