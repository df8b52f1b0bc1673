"""Deletes and updates by predicate: rows of one snapshot, changed in key order, one chunk after another.

The rows of a chunk are written by key, and the next chunk begins when they are acknowledged. New values are
calculated from the rows of the snapshot, so that a chunk can be repeated with the same result. Memory: one
chunk, and what the scan reads ahead. A hold keeps the snapshot readable; after an error it stays until it
expires, for the call that continues.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from nyala.client.caller import Caller
from nyala.client.calls.scanning import Scanning
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.hold import Holding
from nyala.client.modify.results import ChangeResult, PartlyChanged
from nyala.client.read.ordered_merge import last_key
from nyala.client.read.read_spec import ReadSpec, key_names
from nyala.client.results import PartlyWritten
from nyala.client.write.watch import Watch
from nyala.common.errors import InvalidArgument, NyalaError, has_no_effect
from nyala.common.expressions.predicate import Predicate
from nyala.common.schema import Schema, arrow_schema
from nyala.common.texts.counted import counted

CHUNK_ROWS = 100_000
"""Maximum number of rows of a chunk."""
CHUNK_BYTES = 8 << 20
"""Size of a chunk in bytes, as its rows are read."""
HOLD_MS = 3_600_000
"""Lifetime of the hold of the snapshot, in milliseconds; it is renewed at half of it."""
ERRORS_KEPT = 1_000
"""Maximum number of row errors in a result."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """The change of each selected row.

    Attributes:
        op: a `WriteOp` of the wire.
        verb: name of the change for messages: "deleted" or "updated".
        reads: names of the columns that are read, key columns first.
        rows: makes the rows to write from the rows read.
    """

    op: int
    verb: str
    reads: tuple[str, ...]
    rows: Callable[[pa.RecordBatch], pa.RecordBatch]


def parse_after(after: str | None) -> bytes:
    """Return the position in a text, an encoded primary key; empty: the beginning.

    Raises:
        InvalidArgument: it is no position.
    """
    try:
        return bytes.fromhex(after or "")
    except (ValueError, TypeError) as err:
        raise InvalidArgument(
            f"after={after!r} is no position; pass `.after` of an earlier result, with the same at="
        ) from err


class Modification:
    """One delete or update by predicate.

    Args:
        core: the client.
        caller: makes the call.
        table: the table.
        where: selects the rows.
        change: their change.
        watch: progress, and the request to stop.
    """

    def __init__(
        self, core: ClientCore, caller: Caller, table: OpenTable, where: Predicate, change: RowChange,
        watch: Watch,
    ) -> None:  # fmt: skip
        self._core = core
        self._caller = caller
        self._table = table
        self._schema: Schema = table.schema
        self._where = where
        self._change = change
        self._watch = watch
        fields = arrow_schema(self._schema.key_columns)
        self._errors = pa.schema([*fields, ("code", pa.string()), ("message", pa.string())])
        self._so_far = ChangeResult(0, 0, 0, 0, self._errors.empty_table(), 0, 0, "")

    async def run(self, at: int | None, after: bytes) -> ChangeResult:
        """Change the rows that the predicate selects.

        Args:
            at: hybrid time of the snapshot; None: now.
            after: position after which to begin.

        Raises:
            PartlyChanged: some rows are changed, or may be, others not.
            NyalaError: nothing took effect.
        """
        self._table = await self._caller.run(self._fixed())
        holding = await self._hold(at)
        self._so_far = replace(self._so_far, at=holding.at, after=after.hex())
        spec = ReadSpec(
            columns=self._change.reads, where=self._where, at=holding.at, ordered=True, after=after
        )
        rows = Scanning(self._core, self._table, spec).batches()
        chunks = _chunks(self._caller.iterate(rows))
        try:
            with self._watch:
                async for chunk in chunks:
                    await self._write(chunk)
                    if holding.left_ms() < HOLD_MS // 2:
                        ending, holding = holding, await self._hold(holding.at)
                        await self._release(ending)
                    if self._watch.stopped():
                        self._so_far = replace(self._so_far, stopped=True)
                        break
            if not self._so_far.stopped:
                await self._release(holding)
        except Exception as err:  # also of the caller's own function that shows progress
            if self._so_far.matched or not has_no_effect(err):
                why = err.message if isinstance(err, NyalaError) else repr(err)
                raise self._ended_early(why) from err
            await self._release(holding)
            raise
        except BaseException as err:  # Ctrl-C, another signal, or a cancellation
            raise err from self._ended_early("interrupted")
        finally:
            await chunks.aclose()
        return self._so_far

    async def _fixed(self) -> OpenTable:
        """Return a copy of the table whose columns stay as they are, whatever another thread alters."""
        return replace(self._table, schema=self._schema)

    async def _hold(self, at: int | None) -> Holding:
        return await self._caller.acquire(
            lambda: self._core.hold(self._table, at, HOLD_MS), Holding.release
        )

    async def _release(self, holding: Holding) -> None:
        # Closed by another thread: what was changed stays, and the hold expires.
        with suppress(NyalaError):
            await self._caller.finish(holding.release())

    async def _write(self, chunk: pa.RecordBatch) -> None:
        """Write a chunk, and add its outcome."""
        done, now = self._so_far, await self._caller.compute(self._change.rows, chunk)
        try:
            written = await self._core.session.write(
                self._table, self._change.op, now, all_or_nothing=False,
                timeout_ms=self._core.options.timeout_ms, caller=self._caller,
            )  # fmt: skip
        except PartlyWritten as err:
            timestamp = max(done.timestamp, err.timestamp)
            self._so_far = replace(
                done,
                matched=done.matched + err.rows + err.errors.num_rows,
                changed=done.changed + err.rows,
                timestamp=timestamp,
            )
            raise
        gone = [e for e in written.errors if e[1] == "not_found"]
        others = [e for e in written.errors if e[1] != "not_found"]
        self._so_far = replace(
            done,
            matched=done.matched + chunk.num_rows,
            changed=done.changed + written.rows,
            missing=done.missing + len(gone),
            failed=done.failed + len(others),
            errors=self._with_errors(chunk, others),
            timestamp=max(done.timestamp, written.timestamp),
            after=last_key(self._schema, chunk).hex(),
        )
        self._watch.reached(self._so_far.matched)

    def _with_errors(self, chunk: pa.RecordBatch, errors: list[tuple[int, str, str]]) -> pa.Table:
        kept = errors[: max(0, ERRORS_KEPT - self._so_far.errors.num_rows)]
        if not kept:
            return self._so_far.errors
        rows = chunk.select(key_names(self._schema)).take(pa.array([row for row, _, _ in kept]))
        codes = [pa.array([e[n] for e in kept], pa.string()) for n in (1, 2)]
        more = pa.Table.from_arrays([*rows.columns, *codes], schema=self._errors)
        return pa.concat_tables([self._so_far.errors, more])

    def _ended_early(self, why: str) -> PartlyChanged:
        done = self._so_far
        more = f", after={done.after!r}" if done.after else ""
        return PartlyChanged(
            f"{counted(done.changed, 'row')} of table {self._table.name!r} {self._change.verb}, then: "
            f"{why}. Some of the next {CHUNK_ROWS} may be as well. To continue, repeat the call with "
            f"at={done.at}{more}; "
            "the rows of the last batch are counted again",
            {"at": str(done.at), "after": done.after},
            result=done,
        )


async def _chunks(
    batches: AsyncGenerator[pa.RecordBatch, None],
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Combine small batches, and cut large ones."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    async with aclosing(batches):
        async for batch in batches:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                piece = batch.slice(first, CHUNK_ROWS)
                size += piece.nbytes
                if held and (rows + piece.num_rows > CHUNK_ROWS or size > CHUNK_BYTES):
                    yield pa.concat_batches(held)
                    held, rows, size = [], 0, piece.nbytes
                held.append(piece)
                rows += piece.num_rows
    if held:
        yield pa.concat_batches(held)
