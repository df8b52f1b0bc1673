"""Connection: the client's coroutines on an event loop in a thread of its own, for the synchronous API.

`shared` keeps one connection per process and cluster, for scan tokens that arrive without a client.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from nyala.client.calls.opening import OpenClient
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.credentials import cluster_key
from nyala.client.deadline import Attempts
from nyala.client.read.point_reads import is_retryable
from nyala.client.results import PartlyWritten
from nyala.client.write.pending_call import Signal, Written
from nyala.client.write.staging import PartStage
from nyala.client.write.upload import Upload
from nyala.client.write.waiting import closed_meanwhile
from nyala.common.errors import (
    InvalidArgument,
    NyalaError,
    OutcomeUnknown,
    RangesChanged,
)
from nyala.env.loop_thread import ClosedDuringCall, LoopThread
from nyala.env.monotonic import began_us

T = TypeVar("T")


class Connection:
    """One `ClientCore` and the thread that runs it. Any thread may call.

    Args:
        masters: "host:port,..." or a sequence of addresses; one that answers is enough.
        options: see `ClientOptions`.

    Raises:
        Unavailable: no master answers at these addresses.
        InvalidArgument: the credentials of the environment are invalid.
    """

    def __init__(self, masters: str, options: ClientOptions) -> None:
        began = began_us()
        pa.array(
            [0]
        )  # pyarrow looks for pandas at its first conversion: not from two threads at once
        self._loop = LoopThread("nyala-client")

        async def make() -> OpenClient:
            return OpenClient(masters, options)

        try:
            self._open = self._loop.run(make())
            self._loop.run(self._open.reach(began))
        except BaseException:
            self._loop.close()  # also when interrupted: the thread must end
            raise

    @property
    def core(self) -> ClientCore:
        """The client's coroutines, which run on the loop of this connection only."""
        return self._open.core

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, and the tables, journals and logs that it has opened, cannot be pickled or copied: "
            "its connections and its thread belong to this process. Pass client.masters and the names, and "
            "call nyala.connect() in the other process; scan tokens can be pickled"
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the core that changes nothing, and wait for its result.

        Raises:
            Unavailable: closed by another thread meanwhile.
        """
        return self._loop.run(work)

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that goes on if the caller is interrupted, as a release does."""
        return self._loop.finish(work)

    def leave(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a coroutine run without waiting for it; nothing is done if the connection is closed.

        Args:
            begin: returns the coroutine.
        """
        self._loop.leave(begin)

    def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """As `run`; what was acquired is released if the caller is interrupted as it arrives.

        Args:
            begin: returns the coroutine. It releases by itself what it holds when it is cancelled.
            release: releases a result.
        """
        return self._loop.acquire(begin, release)

    def change(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that changes something.

        Raises:
            OutcomeUnknown: closed by another thread meanwhile.
        """
        try:
            return self._loop.run(work)
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=True) from err

    def write(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, all_or_nothing: bool
    ) -> Written:
        """Write one batch; see `Writer.write`. A small batch may share a request with those of other threads.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            batch: the rows, by column name.
            all_or_nothing: one failing row voids the others of its request.
        """
        session, timeout_ms = self.core.session, self.core.options.timeout_ms
        done = Signal()
        call = session.small(
            table, op, batch, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms, on_done=done.set
        )
        if call is None:
            return self.change(
                session.write(
                    table, op, batch, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms
                )
            )
        self._loop.hand_over(session.combiner.take, call)
        try:
            self._loop.wait(done.wait)
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=call.sent) from err
        finally:
            call.over = True  # also when interrupted: rows not sent yet are dropped
        return call.outcome()

    def upload(
        self,
        table: OpenTable,
        op: int,
        batches: Iterator[pa.RecordBatch],
        all_or_nothing: bool,
        stage: PartStage | None = None,
    ) -> Written:
        """Write a stream of batches; the next one is fetched, in this thread, when the queue has room.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            batches: in order; read as there is room.
            all_or_nothing: one failing row voids the others of its request.
            stage: part of a transaction in which the rows are staged; None: they take effect.

        Raises:
            PartlyWritten, NyalaError: as `Upload.finish`; also when the batches end in an error of their own
                after some were written.
            Exception: what fetching a batch raised; nothing took effect.
            KeyboardInterrupt: interrupted; its cause is PartlyWritten if rows are written, or may be. What a
                handler of another signal raises has it too.
        """
        session, timeout_ms = stage or self.core.session, self.core.options.timeout_ms
        upload = self.change(
            session.begin(table, op, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms)
        )
        try:
            while True:
                try:
                    batch = next(batches, None)
                except Exception as err:  # of the caller's own making
                    failure = self.change(upload.stop(err))
                    if failure is err:
                        raise
                    raise failure from err
                if batch is None:
                    return self.change(upload.finish())
                self.change(upload.take(batch))
        except NyalaError as err:
            ended = isinstance(err, InvalidArgument | OutcomeUnknown) and self.closed
            if ended and not isinstance(err, PartlyWritten):
                self._loop.join()  # until no task changes the outcome of a row
                raise upload.closed_error() from err
            raise
        except BaseException as err:  # Ctrl-C, or what a handler of another signal raises
            partly = self.change(upload.interrupt(err))
            if partly is err:
                raise
            partly.__cause__ = None
            raise err from partly
        finally:  # also when interrupted
            if not self.closed:
                self._loop.hand_over(Upload.abandon, upload)

    def get(
        self, table: OpenTable, tablet: TabletLocation, key: bytes, columns: tuple[str, ...] | None,
        batch: Callable[[], pa.RecordBatch],
    ) -> dict[str, Any] | None:  # fmt: skip
        """Look up one key; see `PointGetter.get`. It may share a request with those of other threads.

        Args:
            table: the open table.
            tablet: the tablet that is read.
            key: encoded primary key.
            columns: names wanted; None: all.
            batch: makes the same key as a batch, for a read by scan token.
        """
        getter, timeout_ms = self.core.getter, self.core.options.timeout_ms
        attempts = Attempts(self.core.env, timeout_ms)
        done = Signal()
        wanted = getter.point_read(table, tablet, [key], columns, done.set)
        self._loop.hand_over(partial(getter.try_leader, timeout_ms=timeout_ms), wanted)
        self._loop.wait(done.wait)
        if wanted.error is None:
            return wanted.rows()[0]
        if not is_retryable(wanted.error):
            raise wanted.error
        try:
            again = getter.retry_via_scan(table, tablet, batch(), columns, attempts, wanted.error)
            return self.run(again)[0]
        except RangesChanged:
            return self.run(self.core.get(table, batch(), columns))[0]

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator of the core, fetching one ahead."""
        return self._loop.iterate(items)

    def iterate_pages(self, pages: AsyncIterator[list[T]]) -> Iterator[T]:
        """Yield the items of the pages of an async iterator of the core, fetching one page ahead."""
        for page in self._loop.iterate(pages):
            yield from page

    @property
    def closed(self) -> bool:
        """True if the connection was closed."""
        return self._loop.closed

    def close(self) -> None:
        """End the client; a second call does nothing."""
        self._loop.close(self._open.close)


_shared: dict[tuple[int, str], Connection] = {}
_connecting: dict[tuple[int, str], threading.Lock] = {}
"""One lock per process, since a forked child may inherit one that stays held, and per cluster."""


def shared(masters: str) -> Connection:
    """Return this process' shared connection to a cluster, which is never closed. Any thread."""
    key = (os.getpid(), cluster_key(masters))
    with _connecting.setdefault(key, threading.Lock()):
        if key not in _shared:
            _shared[key] = Connection(masters, ClientOptions())
        return _shared[key]
