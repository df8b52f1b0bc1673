"""Checks of `nyala cluster ksck --checksum`: checksums of all replicas of each tablet at one snapshot.

The leader chooses the present time, and the others wait until they have reached it. A tablet of a dropped
range is read at the last time at which it had rows. Read-only, few tablets at a time.
"""

import asyncio
from dataclasses import astuple, dataclass, fields
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.errors import HistoryGone, NyalaError, TimedOut
from nyala.machines import registry
from nyala.operate.ksck.tablets import named
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2

TABLETS_AT_ONCE = 4
SCHEMA_TRIES = 3
"""Number of tries per table: replicas apply a concurrent alteration at different times."""
ASK_MS = 5_000


@dataclass(frozen=True, slots=True)
class Sum:
    """Checksum of one replica.

    Attributes:
        table: name of the table or journal.
        tablet: id of the tablet.
        address: public address of the replica's server.
        at: hybrid time of the snapshot; 0: no response.
        rows: number of rows; of a journal, of entries and keys.
        checksum: 16 hex digits; empty: see `note`.
        note: the reason why there is no checksum.
    """

    table: str
    tablet: str
    address: str
    at: int = 0
    rows: int = 0
    checksum: str = ""
    note: str = ""


COLUMNS = tuple(f.name for f in fields(Sum))
Answer = reads_pb2.ChecksumResponse | NyalaError


async def compare(core: ClientCore, timeout_ms: int) -> tuple[list[Sum], list[str]]:
    """Return the checksums of all replicas, and the problems; none exactly if all are equal.

    Args:
        core: core of a client.
        timeout_ms: deadline, from now.

    Raises:
        TimedOut: no master leads.
    """
    end_us = core.env.clock.monotonic_us() + timeout_ms * 1000
    room = asyncio.Semaphore(TABLETS_AT_ONCE)

    async def one(table: pb.TableSummary, tablet: pb.TabletLocation) -> tuple[list[Sum], list[str]]:
        async with room:
            return await _Comparison(core, table, tablet, end_us).run()

    tables = await core.tables(all_kinds=True)
    found = [one(t, p) for t in tables for p in await _tablets(core, t.id)]
    parts = await asyncio.gather(*found)
    return [s for sums, _ in parts for s in sums], [p for _, usable in parts for p in usable]


async def _tablets(core: ClientCore, table: str) -> list[pb.TabletLocation]:
    answer = await core.masters.call(
        methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=table), timeout_ms=ASK_MS
    )
    return [*answer.tablets, *answer.dropped]


class _Comparison:
    """Compares the replicas of one tablet."""

    def __init__(
        self, core: ClientCore, table: pb.TableSummary, tablet: pb.TabletLocation, end_us: int
    ) -> None:
        self._core = core
        self._table = table
        self._tablet = tablet
        self._end_us = end_us
        self._replicas = sorted(tablet.replicas, key=lambda r: not r.leader)

    async def run(self) -> tuple[list[Sum], list[str]]:
        for _ in range(SCHEMA_TRIES):
            answers = await self._checksums()
            usable = [a for a in answers if not isinstance(a, NyalaError) and not a.witness]
            if len({a.schema_version for a in usable}) <= 1:
                break
        sums = [self._sum(r, a) for r, a in zip(self._replicas, answers, strict=True)]
        where = named(self._table, self._tablet)
        items = registry.kind_of(self._table.kind).items_name
        return sums, [f"{where}: {problem}" for problem in _problems(sums, usable, items)]

    async def _checksums(self) -> list[Answer]:
        """Return the checksums in the replicas' order; the leader chooses the time.

        The time of a dropped range is known: its rows ended at `dropped_at`.
        """
        refused: list[Answer] = []
        for number, replica in enumerate(self._replicas):
            first = await self._checksum(replica, max(0, self._tablet.dropped_at - 1))
            if isinstance(first, NyalaError) or first.witness:
                refused.append(first)
                continue
            others = self._replicas[:number] + self._replicas[number + 1 :]
            rest = await asyncio.gather(*(self._checksum(r, first.at) for r in others))
            return [*rest[:number], first, *rest[number:]]
        return refused

    async def _checksum(self, replica: pb.ReplicaLocation, at: int) -> Answer:
        left_ms = (self._end_us - self._core.env.clock.monotonic_us()) // 1000
        if left_ms <= 0:
            return TimedOut("there was no time left")
        request = reads_pb2.ChecksumRequest(tablet_id=self._tablet.id, at=at, timeout_ms=left_ms)
        try:
            found: reads_pb2.ChecksumResponse = await self._core.env.rpc.call(
                replica.address, methods.CHECKSUM, request, timeout_ms=left_ms + ASK_MS
            )
        except NyalaError as err:
            return err
        return found

    def _sum(self, replica: pb.ReplicaLocation, answer: Answer) -> Sum:
        where = (self._table.name, self._tablet.id, replica.address or replica.uuid)
        if isinstance(answer, HistoryGone) and self._tablet.dropped_at:
            return Sum(*where, note="skipped: its history is over, and it will be deleted")
        if isinstance(answer, NyalaError):
            return Sum(*where, note=answer.message)
        if answer.witness:
            return Sum(*where, note="skipped: a witness, it has no data")
        return Sum(*where, answer.at, answer.rows, f"{answer.checksum:016x}")


def _problems(sums: list[Sum], usable: list[Any], items: str) -> list[str]:
    found = [
        f"the replica on {s.address} was not compared: {s.note}"
        for s in sums
        if not s.at and not s.note.startswith("skipped: ")
    ]
    if len({a.schema_version for a in usable}) > 1:
        return [*found, "its replicas have different versions of the definition; retry"]
    if len({(s.rows, s.checksum) for s in sums if s.at}) > 1:
        each = ", ".join(f"{s.address} has {s.rows} {items}, {s.checksum}" for s in sums if s.at)
        found.append(f"its replicas differ at {max(s.at for s in sums)}: {each}")
    return found


def as_dicts(sums: list[Sum]) -> list[dict[str, Any]]:
    """Return them for JSON."""
    return [dict(zip(COLUMNS, astuple(s), strict=True)) for s in sums]
