"""Scans, look-ups and change feeds as coroutines: plan tokens, run each on its tablet's leader.

A token names one tablet and one snapshot, so it may be run again. A run that fails before its first row is
repeated at another replica. One that fails later resumes if it is ordered; otherwise it raises an error, and
`collect` repeats it.
"""

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa

from nyala.client.cluster.leader_search import LeaderSearch
from nyala.client.cluster.leader_watch import LeaderWatch, LedElsewhere
from nyala.client.cluster.masters import Masters
from nyala.client.cluster.tablet_cache import (
    LOOKUP_TIMEOUT_MS,
    OpenTable,
    TabletCache,
    TabletLocation,
)
from nyala.client.deadline import Attempts
from nyala.client.read.progress import OnHeader, ScanProgress
from nyala.client.read.read_spec import ReadSpec, make_probe, make_token
from nyala.client.read.snapshot_time import Times
from nyala.common.errors import (
    HistoryGone,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    RangesChanged,
    Retryable,
    TimedOut,
    Unavailable,
)
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.partitioning.partition import TabletPartition, prune
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import flight, methods
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb

STALL_MS = 15_000
"""Time without data from a server after which a scan moves to another one, in milliseconds; less if the
deadline is earlier. Servers send something every quarter of a second, once a scan has begun.
"""
FOLLOWER_MS = 1_000
"""The same for a follower while another replica can go on, in milliseconds; doubled with each round."""
PARALLEL_TOKENS = 8
"""Maximum number of tablets that one `to_arrow` reads at the same time."""
_NO_PARTITION, _NO_UUID = TabletPartition(), ServerUuid("")


class Reader:
    """The reads of one client. Runs on the client's loop."""

    def __init__(
        self, env: Env, masters: Masters, locations: TabletCache, clock: HybridClock
    ) -> None:
        self._env = env
        self._masters = masters
        self._locations = locations
        self._clock = clock
        self._times = Times(env, locations, clock)
        self.batch_bytes = self.batch_rows = 0  # the server chooses

    async def tokens(self, table: OpenTable, spec: ReadSpec, timeout_ms: int) -> list[pb.ScanToken]:
        """Plan a read: one token per tablet that it can touch, all at one snapshot unless `latest`.

        Servers refuse tokens of ranges that are not those of the table at that time: see `plan.py`.

        Args:
            table: the open table.
            spec: spec of the read.
            timeout_ms: deadline, from now.

        Raises:
            HistoryGone: tablets that had rows at that time were deleted.
        """
        return self.tokens_at(table, spec, await self.time_for(table, spec, timeout_ms), timeout_ms)

    async def time_for(self, table: OpenTable, spec: ReadSpec, timeout_ms: int) -> int:
        """Return the time of a read: at or above every write to the ranges known; 0: of each leader.

        Args:
            table: the open table.
            spec: spec of the read; with `at`, that time.
            timeout_ms: deadline, from now.
        """
        if spec.at or spec.latest:
            return spec.at
        await self._locations.refresh_old(table)  # the time is that of the present voters
        while True:
            version = table.ranges_version
            at = await self._times.snapshot(table, timeout_ms)
            if table.ranges_version == version:
                return at

    def tokens_at(
        self, table: OpenTable, spec: ReadSpec, at: int, timeout_ms: int
    ) -> list[pb.ScanToken]:
        """Return the tokens of a read at a time. Raises as `tokens`.

        Args:
            table: the open table.
            spec: spec of the read.
            at: hybrid time of the snapshot; 0: now, at each leader.
            timeout_ms: deadline, from now.
        """
        first = spec.since if spec.changes else at or None
        if first is not None and first < table.history_from:
            raise HistoryGone(
                f"the time {first} lies below {table.history_from}, before which table {table.name!r} had "
                "ranges that were dropped, and whose rows are not kept any more; read at a later time",
                {"horizon": str(table.history_from)},
            )
        tablets = table.with_rows(first)
        every = [t.partition for t in tablets]
        wanted = set(prune(table.schema, table.partition_schema, every, spec.where))
        return [
            self.token(table, tablet, spec, at, timeout_ms)
            for tablet in tablets
            if tablet.partition in wanted
        ]

    def token(
        self, table: OpenTable, tablet: TabletLocation, spec: ReadSpec, at: int, timeout_ms: int
    ) -> pb.ScanToken:
        """Return the token that reads one tablet at a time; 0: its leader's own.

        Args:
            table: the open table.
            tablet: the tablet that is read.
            spec: spec of the read.
            at: hybrid time of the snapshot; 0: now, at each leader.
            timeout_ms: deadline, from now.
        """
        return self._ready(make_token(table, tablet, spec, at), timeout_ms)

    async def probe(self, table: OpenTable, at: int, timeout_ms: int) -> None:
        """Check that the known ranges of a table are those that it has at a time; 0: now.

        Args:
            table: the open table.
            at: hybrid time of the snapshot; 0: now, at each leader.
            timeout_ms: deadline, from now.

        Raises:
            RangesChanged: it has others.
            TimedOut: no leader of the tablet that was asked answered.
        """
        tablet = next((t for t in table.tablets if t.leader), table.tablets[0])
        await self.collect(self._ready(make_probe(table, tablet, at), timeout_ms))

    def _ready(self, token: pb.ScanToken, timeout_ms: int) -> pb.ScanToken:
        token.batch_bytes, token.batch_rows = self.batch_bytes, self.batch_rows
        token.masters.extend(self._masters.known)
        token.propagated_time = self._clock.seen
        token.timeout_ms = timeout_ms
        return token

    async def collect(
        self, token: pb.ScanToken, on_header: OnHeader | None = None
    ) -> list[pa.RecordBatch]:
        """Run a token to its end, repeating it after failures until its deadline."""
        attempts = Attempts(self._env, token.timeout_ms or 60_000)
        while True:
            try:
                return [b async for b in self.run(token, attempts, on_header, repeated=True)]
            except Retryable as err:
                if isinstance(err, TimedOut | RangesChanged) or not await attempts.pause():
                    raise

    async def collect_all(
        self, tokens: list[pb.ScanToken], on_header: OnHeader | None = None
    ) -> list[list[pa.RecordBatch]]:
        """Run tokens concurrently, a few at a time; return the batches of each, in token order."""
        slots = asyncio.Semaphore(PARALLEL_TOKENS)

        async def one(token: pb.ScanToken) -> list[pa.RecordBatch]:
            async with slots:
                return await self.collect(token, on_header)

        runs = [asyncio.ensure_future(one(t)) for t in tokens]
        try:
            return list(await asyncio.gather(*runs))
        finally:  # an error of one ends the others
            for run in runs:
                run.cancel()

    async def run(
        self,
        token: pb.ScanToken,
        attempts: Attempts | None = None,
        on_header: OnHeader | None = None,
        *,
        repeated: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Run a token and yield its batches.

        A stale read goes to a follower first, then to the leader, then to the others. An ordered one that
        fails resumes after the last row delivered, at the same snapshot, on another server. A server that
        is silent is left as soon as another replica leads, a follower after `FOLLOWER_MS`; but a stream
        without order that has delivered rows only after `STALL_MS`, unless its caller repeats it.

        Args:
            token: token of one tablet, or a piece of it.
            attempts: deadline and pauses; None: from the token's `timeout_ms`.
            on_header: called when a server answers; None: no call.
            repeated: the caller runs the token again if it ends as Unavailable.

        Raises:
            Unavailable: a stream without order broke after rows were delivered that cannot be told from
                those to come; `collect` begins again by itself.
            TimedOut: no leader of the tablet served it before the deadline.
            RangesChanged: the token was made from other ranges than the table has at its time.
        """
        budget_ms = token.timeout_ms or 60_000
        tries = attempts or Attempts(self._env, budget_ms)
        location = location_of(token)
        read = ScanProgress(token, on_header, repeated=repeated)
        search = LeaderSearch(self._locations, location)

        async def look_again() -> None:
            await self.relocate(token, location, tries)

        watch, follower_ms = LeaderWatch(self._env, location, look_again), FOLLOWER_MS
        while True:
            stale = read.token.mode == pb.STALE
            order = _stale_read_order(location, self._env) if stale else location.addresses()
            watching = None if stale else watch
            leave_ms = min(follower_ms, STALL_MS) if stale and len(order) > 1 else STALL_MS
            for address in order:
                before, left_ms = read.delivered, tries.left_ms()
                if not left_ms:
                    break
                silent_ms = min(STALL_MS, left_ms), min(STALL_MS, budget_ms)
                try:
                    async for batch in _once(
                        self._env, self._clock, address, read, *silent_ms, leave_ms, watching
                    ):
                        yield batch
                    return
                except RangesChanged:
                    raise
                except NotLeader as err:
                    if search.refused(address, err) and not stale:
                        break
                except (Retryable, OutcomeUnknown) as err:
                    search.failed(address, err, left_ms)
                    if read.delivered > before:
                        if read.resume(search.reason):
                            return
                        tries = Attempts(self._env, budget_ms)
                    if isinstance(err, LedElsewhere):
                        break
            else:
                search.end_round()
                follower_ms *= 2
            if not await tries.pause():
                raise TimedOut(
                    f"no leader of tablet {token.tablet_id} served a read in time; at last: {search.reason}. "
                    "Check: nyala cluster ksck"
                )
            if not location.leader:
                await self.relocate(token, location, tries)
            read.move_to(location.id)

    async def relocate(
        self, token: pb.ScanToken, location: TabletLocation, attempts: Attempts
    ) -> None:
        """Look up a token's tablet at the masters; a failure is ignored, as the caller retries.

        Args:
            token: token of one tablet.
            location: known location of the tablet; updated.
            attempts: the deadline and the pauses between tries.

        Raises:
            NotFound: the table is gone.
            RangesChanged: the tablet is, its range having been dropped long ago.
        """
        request = pb.TabletLocationsRequest(table_id=token.table_id, tablet_ids=[token.tablet_id])
        try:
            answer, _ = await self._locations.ask_shared(request, _ask_ms(attempts))
        except Retryable:
            return
        except NotFound as err:
            request.ClearField("tablet_ids")
            await self._locations.ask_shared(request, _ask_ms(attempts))
            raise RangesChanged(
                f"{err.message}: plan the read anew: scan the table, or make the tokens, again"
            ) from err
        for tablet in answer.tablets:
            location.id = TabletId(tablet.id)
            location.replicas = tuple((_NO_UUID, r.address) for r in tablet.replicas)
            location.leader = next((r.address for r in tablet.replicas if r.leader), None)


def _ask_ms(attempts: Attempts) -> int:
    return max(1, min(LOOKUP_TIMEOUT_MS, attempts.left_ms()))


def location_of(token: pb.ScanToken) -> TabletLocation:
    """Return the location of a token's tablet, as stored in the token."""
    location = TabletLocation(TabletId(token.tablet_id), _NO_PARTITION)
    location.replicas = tuple((_NO_UUID, a) for a in token.replicas)
    location.leader = token.replicas[0] if token.replicas else None
    return location


def _stale_read_order(location: TabletLocation, env: Env) -> list[str]:
    """Return the addresses for a stale read: a random follower, then the leader, then the others."""
    addresses = location.addresses()
    followers = [a for a in addresses if a != location.leader]
    if not followers:
        return addresses
    first = followers[env.random.randrange(len(followers))]
    return [first, *(a for a in addresses if a != first)]


async def _once(
    env: Env,
    clock: HybridClock,
    address: str,
    read: ScanProgress,
    silent_ms: int,
    later_ms: int,
    leave_ms: int,
    watch: LeaderWatch | None,
) -> AsyncIterator[pa.RecordBatch]:
    """Run a token once at one server.

    Args:
        env: calls.
        clock: merges the time of the read.
        address: address of the server.
        read: progress of the token.
        silent_ms: longest wait for the first message.
        later_ms: longest wait for each further one.
        leave_ms: longest wait for any while another replica can go on with the scan.
        watch: ends such a wait when another replica leads; None: nothing does.

    Raises:
        Unavailable: the server sent nothing for that time.
        LedElsewhere: it sent nothing, and another replica leads.
    """
    ticket = flight_pb2.Ticket(ticket=read.token.SerializeToString())
    stream = env.rpc.stream(address, methods.DO_GET, ticket)
    schema: pa.Schema | None = None
    try:
        while True:
            try:
                if read.can_leave:
                    silent_ms = min(silent_ms, leave_ms)
                async with asyncio.timeout(silent_ms / 1000):
                    message = anext(stream)
                    if read.can_leave and watch is not None:
                        message = watch.answer(address, message)
                    data = await message
            except StopAsyncIteration:
                if schema is None:
                    raise Unavailable("ended the scan before it began") from None
                return
            except TimeoutError:
                raise Unavailable(f"sent nothing for {silent_ms} ms") from None
            silent_ms = later_ms
            if schema is None:
                schema = flight.read_schema(data.header)
                header = pb.ScanHeader.FromString(bytes(data.app_metadata))
                clock.merge(header.at)
                read.set_header(header)
                continue
            batch = flight.read_batch(schema, data.header, data.body, trusted=True)
            if batch.num_rows:  # an empty one is a keepalive
                batch = read.add(batch)
                if batch.num_rows:
                    yield batch
    finally:
        await _close(stream)


async def _close(stream: AsyncIterator[object]) -> None:
    """End a stream that may be left early, so that its server stops reading."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
