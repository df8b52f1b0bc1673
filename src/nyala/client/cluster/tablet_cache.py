"""Open tables and tablet locations, filled by the leader master and refreshed after failures.

An open table belongs to its caller; the cache keeps only the addresses of the servers that it has seen.
"""

from dataclasses import dataclass, field

from nyala.client.cluster.masters import Masters
from nyala.client.cluster.shared_lookups import SharedLookups
from nyala.client.deadline import Attempts
from nyala.common import addresses
from nyala.common.errors import RangesChanged, Retryable, Unavailable
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition, partitions
from nyala.common.schema import Schema
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

LOOKUP_TIMEOUT_MS = 5_000
OLD_TIMEOUT_MS = 1_000
"""Longest wait for newer locations while those that are known may do, in milliseconds."""
RETRY_OLD_MS = 10_000
"""Time after which old locations are looked up again if no master answered, in milliseconds."""
HAS_LEADER = ("RUNNING", "DROPPED")


@dataclass(slots=True)
class TabletLocation:
    """One tablet and its replicas, as last known.

    Attributes:
        id: the tablet.
        partition: its part of the table.
        replicas: (uuid, public address) of each replica.
        leader: public address of the leader; None when not known.
        voters: public addresses of the voters, which are the majorities; empty: not known.
        dropped_at: hybrid time at which its rows ended, if its range was dropped; 0: it was not, or it is
            not known yet.
    """

    id: TabletId
    partition: TabletPartition
    replicas: tuple[tuple[ServerUuid, str], ...] = ()
    leader: str | None = None
    dropped_at: int = 0
    voters: tuple[str, ...] = ()

    def addresses(self) -> list[str]:
        """Return the addresses to try: the leader first."""
        others = [a for _, a in self.replicas if a and a != self.leader]
        return ([self.leader] if self.leader else []) + others

    def majority_of(self) -> list[str]:
        """Return the addresses whose majority has every acknowledged write: non-voters do not count."""
        return list(self.voters) or [a for _, a in self.replicas if a]


@dataclass(slots=True)
class OpenTable:
    """A table as the client knows it; `tablets` are in partition order (`partition.locate`).

    Its columns are those at its opening. Its ranges and tablets are looked up again when a tablet does not
    answer, when a row has no partition, when a server has newer ranges, and at `until_us` (monotonic time).

    Attributes:
        ranges_version: schema version of the last change of ranges.
        dropped: tablets of dropped ranges, needed for reads at earlier times.
        history_from: earliest time that can be read; 0: not limited, as far as is known.
        columns_from: hybrid time from which the table has the columns of `schema`; 0: always.
        looked_us: when the shared look-up whose answer was taken over last was asked for; monotonic.
    """

    id: TableId
    name: str
    schema: Schema
    partition_schema: PartitionSchema
    replicas: int
    options: dict[str, str]
    tablets: list[TabletLocation] = field(default_factory=list)
    until_us: int = 0
    ranges_version: int = 0
    dropped: list[TabletLocation] = field(default_factory=list)
    history_from: int = 0
    columns_from: int = 0
    write_max_bytes: int = 0
    """Largest write that servers accept, in bytes; 0: not known."""
    looked_us: int = field(default=-1, repr=False, compare=False)

    def with_rows(self, after: int | None = None) -> list[TabletLocation]:
        """Return the tablets that may have rows now, or may have had rows after a time.

        Tablets of dropped ranges come first, so that the changes of each key are in order.
        """
        ended = [
            t
            for t in self.dropped
            if not t.dropped_at or (after is not None and after < t.dropped_at)
        ]
        ended.sort(key=lambda t: (not t.dropped_at, t.dropped_at))
        return [*ended, *self.tablets]

    def tablet_at(self, ps: PartitionSchema, number: int) -> TabletLocation | None:
        """Return the tablet with a number in a partition schema; None if there is none. Any thread.

        Also None if another thread has changed the ranges since the number was computed.
        """
        tablets = self.tablets
        if not 0 <= number < len(tablets):
            return None
        tablet = tablets[number]
        fits = tablet.partition.range == ps.all_ranges[number // ps.buckets]
        return tablet if fits else None

    def follow(self, fresh: "OpenTable") -> None:
        """Take over definition, ranges and tablets of a newly opened table. On the client's loop only."""
        assert fresh.id == self.id, f"{fresh.id} is not {self.id}"
        self.name, self.schema, self.replicas = fresh.name, fresh.schema, fresh.replicas
        self.columns_from = fresh.columns_from
        self.update_ranges(fresh)
        self.options, self.until_us = fresh.options, fresh.until_us
        self.write_max_bytes = fresh.write_max_bytes

    def update_ranges(self, fresh: "OpenTable") -> None:
        """Take over ranges and tablets of a newly opened table."""
        self.partition_schema, self.tablets = fresh.partition_schema, fresh.tablets
        self.ranges_version, self.dropped = fresh.ranges_version, fresh.dropped
        self.history_from = fresh.history_from


class TabletCache:
    """Finds tables and the leaders of their tablets. Runs on the client's loop.

    Args:
        masters: masters of the cluster.
        max_age_ms: largest age of answers of other masters than the leader; 0: the leader's only.
    """

    def __init__(self, masters: Masters, max_age_ms: int = 0) -> None:
        self._masters = masters
        self._max_age_ms = max_age_ms
        self._shared = SharedLookups(masters, self.ask)
        self._servers: dict[str, None] = {}  # the last one was seen last

    def servers(self) -> list[str]:
        """Return the public addresses of the tablet servers seen, the one seen last first."""
        return list(reversed(self._servers))

    def _add_servers(self, tablet: TabletLocation) -> None:
        for _, address in tablet.replicas:
            if address:
                addresses.keep_newest(self._servers, address, None)

    async def open(self, name: str, timeout_ms: int, *, table_id: str = "") -> OpenTable:
        """Open a table by name, or else by id, from the masters.

        Args:
            name: name of the table; used when `table_id` is empty.
            timeout_ms: deadline, from now.
            table_id: id of the table; empty: by name.

        Raises:
            NotFound: no such table.
            InvalidArgument: it is a journal.
        """
        began_us = self._masters.now_us()
        answer: pb.DescribeTableResponse = await self._masters.look_up(
            methods.DESCRIBE_TABLE,
            pb.DescribeTableRequest(name=name, id=table_id),
            max_age_ms=self._max_age_ms,
            timeout_ms=timeout_ms,
        )
        table = OpenTable(
            TableId(answer.id),
            answer.table.name,
            convert.schema_from_proto(answer.table.schema),
            convert.partition_schema_from_proto(answer.table.partition),
            answer.table.replicas,
            dict(answer.table.options),
            columns_from=answer.columns_from,
        )
        left_ms = timeout_ms - (self._masters.now_us() - began_us) // 1000
        await self.refresh(table, max(1, left_ms))
        return table

    async def open_again(self, table: OpenTable, version: int, attempts: Attempts) -> OpenTable:
        """Open a table again, with a newer schema; masters that lag are asked again.

        Args:
            table: the open table; it stays as it is.
            version: of the schema, at least.
            attempts: deadline and pauses.

        Raises:
            Unavailable: only masters that do not know that version yet have answered.
        """
        known: Unavailable | None = None
        while True:
            with attempts.keeping(known):
                fresh = await self.open("", max(1, attempts.left_ms()), table_id=table.id)
            if fresh.schema.version >= version:
                return fresh
            known = Unavailable(
                f"no master answers with version {version} of table {table.name!r}; check: nyala "
                "cluster ksck"
            )
            if not await attempts.pause():
                raise known

    async def refresh(
        self, table: OpenTable, timeout_ms: int = LOOKUP_TIMEOUT_MS, *, by_leader: bool = False
    ) -> None:
        """Look up the ranges and tablets of a table again. Its columns stay as opened.

        Callers that have located rows must keep the tablets, not their positions, which may change.

        Args:
            table: that is looked up.
            timeout_ms: for the answer.
            by_leader: only the leader master may answer, since others may lack the newest ranges.
        """
        request = pb.TabletLocationsRequest(table_id=table.id)
        self._take_over(table, await self.ask(request, timeout_ms, by_leader=by_leader))

    def _take_over(self, table: OpenTable, answer: pb.TabletLocationsResponse) -> None:
        if answer.ranges_version < table.ranges_version:
            return  # another master's, of a moment before those that are known here
        found = {convert.partition_from_proto(t.partition): t for t in answer.tablets}
        locations = []
        ps = convert.partition_schema_from_proto(answer.partition)
        for partition in partitions(table.schema, ps):
            tablet = found.get(partition)
            if tablet is None:
                raise Unavailable(
                    f"table {table.name!r} has no tablet for {partition} yet; its creation is under way"
                )
            locations.append(_location(tablet, partition))
            self._add_servers(locations[-1])
        table.partition_schema, table.tablets = ps, locations
        table.dropped = [
            _location(t, convert.partition_from_proto(t.partition)) for t in answer.dropped
        ]
        table.ranges_version, table.history_from = answer.ranges_version, answer.history_from
        table.until_us = self._masters.now_us() + answer.ttl_ms * 1000
        table.write_max_bytes = answer.write_max_bytes

    async def refresh_shared(self, table: OpenTable, timeout_ms: int = OLD_TIMEOUT_MS) -> None:
        """Look up the ranges and tablets, as `refresh`; the answer may be another caller's, 100 ms old.

        For what many callers may need at once: after the failure of a server, and when locations are old.

        Args:
            table: that is looked up.
            timeout_ms: for the answer.

        Raises:
            Unavailable, TimedOut: no master answered.
        """
        answer, asked_us = await self.ask_shared(
            pb.TabletLocationsRequest(table_id=table.id), timeout_ms
        )
        if asked_us > table.looked_us:
            self._take_over(table, answer)
            table.looked_us = asked_us

    async def refresh_old(self, table: OpenTable) -> None:
        """Look up the tablets if their locations are older than the masters allow (`locations_ttl_ms`).

        Replicas may have moved, and those that were removed do not refuse every request. While no master
        answers the known locations are used.
        """
        if not table.until_us or self._masters.now_us() < table.until_us:
            return
        try:
            await self.refresh_shared(table)
        except Retryable:
            table.until_us = self._masters.now_us() + RETRY_OLD_MS * 1000

    async def ask(
        self, request: pb.TabletLocationsRequest, timeout_ms: int, *, by_leader: bool = False
    ) -> pb.TabletLocationsResponse:
        """Return the locations of tablets from the masters.

        Args:
            request: names the table, and may name tablets.
            timeout_ms: deadline, from now.
            by_leader: only the leader master may answer.
        """
        age_ms = 0 if by_leader else self._max_age_ms
        answer: pb.TabletLocationsResponse = await self._masters.look_up(
            methods.TABLET_LOCATIONS, request, max_age_ms=age_ms, timeout_ms=timeout_ms
        )
        return answer

    async def ask_shared(
        self, request: pb.TabletLocationsRequest, timeout_ms: int
    ) -> tuple[pb.TabletLocationsResponse, int]:
        """As `ask`, for many callers at once; see `SharedLookups.ask`."""
        return await self._shared.ask(request, timeout_ms)

    def location(self, answer: pb.TabletLocation) -> TabletLocation:
        """Return the location of the only tablet of something that has no partitions."""
        found = _location(answer, convert.partition_from_proto(answer.partition))
        self._add_servers(found)
        return found

    def learn(
        self, tablet: TabletLocation, *, asked: str, leader: str | None, address: str | None
    ) -> None:
        """Update a tablet's leader from the response of a replica that does not lead, or from its failure.

        Args:
            tablet: tablet of the request.
            asked: address of the replica that does not lead, or does not answer.
            leader: uuid of the leader in the response, if any.
            address: public address of the leader in the response, if any.
        """
        known = address or next((a for u, a in tablet.replicas if u == leader), None)
        if known and known != asked:
            tablet.leader = known
        elif tablet.leader == asked:
            tablet.leader = None


def _location(tablet: pb.TabletLocation, partition: TabletPartition) -> TabletLocation:
    if tablet.state not in HAS_LEADER:
        # It may still be replaced, and writes to it would be lost: it has no address yet.
        return TabletLocation(TabletId(tablet.id), partition)
    replicas = tuple((ServerUuid(r.uuid), r.address) for r in tablet.replicas)
    leader = next((r.address for r in tablet.replicas if r.leader and r.address), None)
    voters = tuple(r.address for r in tablet.replicas if r.voter and r.address)
    return TabletLocation(
        TabletId(tablet.id), partition, replicas, leader, tablet.dropped_at, voters
    )


def update_location(tablet: TabletLocation, table: OpenTable) -> bool:
    """Update a tablet's id and replicas from a refreshed table; a replaced tablet becomes its successor.

    Returns:
        True if the tablet, or another one with its partition, exists.
    """
    same = next((t for t in (*table.tablets, *table.dropped) if t.id == tablet.id), None)
    fresh = same or next((t for t in table.tablets if t.partition == tablet.partition), None)
    if fresh is None:
        return False
    relocate(tablet, fresh)
    return True


def relocate(tablet: TabletLocation, fresh: TabletLocation) -> None:
    """Update a tablet's id and replicas from a new look-up."""
    tablet.id, tablet.replicas, tablet.leader = fresh.id, fresh.replicas, fresh.leader
    tablet.voters = fresh.voters


def range_dropped(tablet: TabletLocation, table: OpenTable) -> RangesChanged:
    """Return the error of a tablet whose range was dropped."""
    return RangesChanged(
        f"tablet {tablet.id} is not one of table {table.name!r} any more: its range was dropped, with all "
        "rows that it had; look the table's ranges up again"
    )
