"""The client's logic as coroutines over `env`, run by `Connection` and by the simulator.

Nothing here blocks. One `ClientCore` per client; all of it runs on one loop.
"""

import asyncio
import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.client.caller import OnLoop
from nyala.client.cluster.ddl import Definitions, describe
from nyala.client.cluster.masters import Masters
from nyala.client.cluster.past_schemas import PastSchemas
from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.hold import Holding
from nyala.client.read.plan import ReadPlan
from nyala.client.read.point_reads import PointGetter
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.snapshot_time import Times, near
from nyala.client.read.token_reader import Reader
from nyala.client.write.writer import BatchLimits, Writer
from nyala.common.errors import NotFound, RangesChanged, Unavailable
from nyala.common.keys.encoding import encode_keys
from nyala.common.partitioning.partition import locate
from nyala.env.clock import HybridClock, random_id
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

SCAN_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of one client.

    Attributes:
        timeout_ms: deadline of each call, all retries included; of a write of many rows: since the last batch
            of it that was acknowledged.
        limits: sizes of the batches of a write.
        client_id: 16 bytes under which operations are numbered; None: random. Two processes that give
            the same id and the same operations in the same order execute each once.
        keep_results: tablets keep all results until they expire; with a given `client_id`.
        since: with a given `client_id`: hybrid time before which no process wrote under it; 0: not known.
        scan_batch_bytes: size of the batches that a scan asks for; 0: the server chooses it.
        scan_batch_rows: most rows of such a batch; 0: no limit.
        lookup_max_age_ms: largest age of another master's answer about tables and tablets while the leader
            master does not answer; 0: the leader's only.
        scan_ahead_bytes: rows that scans receive before their callers take them, of all tablets.
    """

    timeout_ms: int = 60_000
    limits: BatchLimits = field(default_factory=BatchLimits)
    client_id: bytes | None = None
    keep_results: bool = False
    since: int = 0
    scan_batch_bytes: int = 0
    scan_batch_rows: int = 0
    lookup_max_age_ms: int = 10_000
    scan_ahead_bytes: int = SCAN_AHEAD_BYTES


class ClientCore:
    """One client. Make it on the loop that will run it.

    Args:
        env: the environment: clock, tasks, files, calls.
        addresses: addresses of the masters, one or more.
        options: see `ClientOptions`.

    Attributes:
        caller: makes calls in coroutines of the loop.
    """

    def __init__(self, env: Env, addresses: Sequence[str], options: ClientOptions) -> None:
        self.env = env
        self.options = options
        self.caller = OnLoop(env.tasks)
        self.clock = HybridClock(env.clock)
        self.masters = Masters(env, addresses)
        self.locations = TabletCache(self.masters, options.lookup_max_age_ms)
        self.masters.addresses.tservers = self.locations.servers
        self.past = PastSchemas(self.masters, options.lookup_max_age_ms, options.timeout_ms)
        self.client_id = options.client_id or bytes.fromhex(random_id(env.random))
        self.session = Writer(
            env, self.client_id, self.locations, self.clock, options.limits,
            keep_results=options.keep_results, since=options.since,
        )  # fmt: skip
        self.reader = reader = Reader(env, self.masters, self.locations, self.clock)
        reader.batch_bytes, reader.batch_rows = options.scan_batch_bytes, options.scan_batch_rows
        self.getter = PointGetter(env, self.locations, self.clock, self.reader)
        self._times = Times(env, self.locations, self.clock)
        # A given client id is for repeated writes; DDL operations of two processes are different.
        name = bytes.fromhex(random_id(env.random)) if options.client_id else self.client_id
        timeout_ms = options.timeout_ms
        self.ddl = Definitions(env, self.masters, self.locations, name, timeout_ms, self.clock)

    async def describe(self, name: str, *, max_age_ms: int = 0) -> pb.DescribeTableResponse:
        """Return the description of a table; from any master if `max_age_ms` is not 0.

        Raises:
            NotFound: no such table.
        """
        return await describe(self.masters, name, self.options.timeout_ms, max_age_ms=max_age_ms)

    async def tables(
        self,
        *,
        dropped: bool = False,
        all_kinds: bool = False,
        max_age_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> list[pb.TableSummary]:
        """Return the tables, by name; or those that were dropped and can be recalled.

        Args:
            dropped: the latter.
            all_kinds: journals too.
            max_age_ms: as for `describe`.
            timeout_ms: for the answer; None: the client's.
        """
        answer: pb.ListTablesResponse = await self.masters.look_up(
            methods.LIST_TABLES,
            pb.ListTablesRequest(dropped=dropped, all_kinds=all_kinds),
            max_age_ms=max_age_ms,
            timeout_ms=timeout_ms or self.options.timeout_ms,
        )
        return sorted(answer.tables, key=lambda t: t.name)

    async def open_table(self, name: str) -> OpenTable:
        """Open a table by name.

        Raises:
            NotFound: no such table; the message has the nearest name.
        """
        try:
            return await self.locations.open(name, self.options.timeout_ms)
        except NotFound:
            names = [t.name for t in await self.tables()]
            shown = ", ".join(names[:10]) or "none yet"
            similar = difflib.get_close_matches(name, names, 1)
            hint = f" did you mean {similar[0]!r}?" if similar else ""
            raise NotFound(f"no table {name!r};{hint} the tables are: {shown}") from None

    async def servers(
        self, *, max_age_ms: int = 0, timeout_ms: int | None = None
    ) -> pb.ListServersResponse:
        """Return all masters and tablet servers; from any master if `max_age_ms` is not 0.

        Args:
            max_age_ms: as for `describe`.
            timeout_ms: for the answer; None: the client's.
        """
        answer: pb.ListServersResponse = await self.masters.look_up(
            methods.LIST_SERVERS,
            pb.ListServersRequest(),
            max_age_ms=max_age_ms,
            timeout_ms=timeout_ms or self.options.timeout_ms,
        )
        return answer

    async def now(self) -> int:
        """Return a hybrid time at or above the stamp of every write acknowledged before this call.

        If all tablet servers answer with times near each other, it is the largest of them; otherwise a
        majority of each tablet's servers has to answer.

        Raises:
            Unavailable: no tablet server answers, or no majority of some tablet's servers.
        """
        attempts = Attempts(self.env, self.options.timeout_ms)
        known: Unavailable | None = None
        while True:
            with attempts.keeping(known):
                answer = await self.servers(timeout_ms=max(1, attempts.left_ms()))
            servers = dict.fromkeys(s.address for s in answer.servers if s.role == "tserver")
            times = await self._times.ask(
                servers, lambda times: False, min(2_000, attempts.left_ms())
            )
            if times and near(times.values()) and len(times) == len(servers):
                self.clock.merge(max(times.values()))
                return self.clock.seen
            known = _no_time(servers, times)
            if times:
                with attempts.keeping(known):
                    groups = await self._voters(attempts)
                    of_groups = dict.fromkeys(a for g in groups for a in g)
                    return await self._times.time_of(of_groups, groups, attempts.left_ms())
            if not await attempts.pause():
                raise known

    async def _voters(self, attempts: Attempts) -> list[list[str]]:
        """Return the addresses of the voters of each tablet, of all tables and journals."""
        found: list[list[str]] = []
        for table in await self.tables(all_kinds=True, timeout_ms=max(1, attempts.left_ms())):
            answer: pb.TabletLocationsResponse = await self.masters.look_up(
                methods.TABLET_LOCATIONS,
                pb.TabletLocationsRequest(table_id=table.id),
                max_age_ms=0,
                timeout_ms=max(1, attempts.left_ms()),
            )
            found += [[r.address for r in t.replicas if r.voter] for t in answer.tablets]
        return found

    async def hold(
        self,
        table: OpenTable,
        at: int | None,
        ttl_ms: int,
        *,
        name: str = "",
        lasting: str = "",
    ) -> Holding:
        """Hold a snapshot of a table; None: now. See `Table.hold`.

        Args:
            table: the open table.
            at: hybrid time; None: now.
            ttl_ms: lifetime of the hold, in milliseconds.
            name: beginning of the hold's name.
            lasting: its whole name, of a hold that lasts as long as this client, and `ttl_ms` longer.
        """
        attempts = Attempts(self.env, self.options.timeout_ms)
        moment = at
        if moment is None:
            plan = self.plan(table, ReadSpec(count_only=True))
            await plan.verified()
            moment = plan.at
        holding = Holding(
            self.env, self.locations, table, moment, ttl_ms, name=name, lasting=lasting
        )
        await holding.begin(attempts.left_ms())
        return holding

    def plan(self, table: OpenTable, spec: ReadSpec) -> ReadPlan:
        """Return the plan of a read; nothing is sent yet."""
        timeout_ms = self.options.timeout_ms
        return ReadPlan(self.env, self.reader, self.locations, table, spec, timeout_ms)

    async def get(
        self, table: OpenTable, keys: pa.RecordBatch, columns: tuple[str, ...] | None
    ) -> list[dict[str, Any] | None]:
        """Return the row of each key, None where there is none; linearizable per tablet.

        Args:
            table: the open table.
            keys: batch of the key columns.
            columns: names wanted; None: all.
        """
        if not keys.num_rows:
            return []
        attempts = Attempts(self.env, self.options.timeout_ms)
        known: RangesChanged | None = None
        fresh = False
        while True:
            numbers, tablets = locate(table.schema, table.partition_schema, keys), table.tablets
            if fresh or (numbers >= 0).all():
                try:
                    with attempts.keeping(known):
                        return await self._get(table, keys, columns, (numbers, tablets), attempts)
                except RangesChanged as err:
                    known = err
                    if not await attempts.pause():
                        raise
            # Before a key is reported as absent: a range may have been added.
            with attempts.keeping(known):
                await self.locations.refresh(table, max(1, attempts.left_ms()), by_leader=True)
            fresh = True

    async def _get(
        self, table: OpenTable, keys: pa.RecordBatch, columns: tuple[str, ...] | None,
        places: tuple[npt.NDArray[np.int32], list[TabletLocation]], attempts: Attempts,
    ) -> list[dict[str, Any] | None]:  # fmt: skip
        """As `get`, for located keys: `places` has the tablet number of each key, and the tablets."""
        numbers, tablets = places
        found: list[dict[str, Any] | None] = [None] * keys.num_rows
        key_columns = table.schema.key_columns
        encoded = encode_keys(
            [keys.column(c.name) for c in key_columns], [c.type for c in key_columns]
        )

        async def one(number: int) -> None:
            rows = np.flatnonzero(numbers == number)
            wanted = [encoded.key_at(row) for row in rows.tolist()]
            answers = await self.getter.get(
                table, tablets[number], wanted, lambda: keys.take(pa.array(rows)), columns,
                max(1, attempts.left_ms()),
            )  # fmt: skip
            for row, answer in zip(rows.tolist(), answers, strict=True):
                found[row] = answer

        await asyncio.gather(*(one(int(n)) for n in np.unique(numbers) if n >= 0))
        return found

    async def close(self) -> None:
        """End streams and tasks; nothing acknowledged is affected."""
        self.session.combiner.close()
        self.session.streams.close()
        self.getter.close()
        await self.env.tasks.close()


def _no_time(servers: Collection[str], times: Collection[str]) -> Unavailable:
    """Return the error of `now`.

    Args:
        servers: addresses of the live tablet servers.
        times: addresses of those that answered.
    """
    silent = [a for a in servers if a not in times]
    if silent:
        why = f"{', '.join(silent)} do not answer"
    else:
        why = f"the clocks of {', '.join(servers)} differ" if servers else "no live tablet servers"
    return Unavailable(
        f"no time above all acknowledged writes is known: {why}; check: nyala cluster ksck"
    )
