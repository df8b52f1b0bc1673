"""Open tables and where their tablets are: a cache that the leader master fills and failures refresh."""

from dataclasses import dataclass, field

from nyala.client.masters import Masters
from nyala.common.errors import NotFound, Unavailable
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partition import Partition, PartitionSchema, partitions
from nyala.common.schema import Schema
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

LOOKUP_TIMEOUT_MS = 5_000
RUNNING = "RUNNING"


@dataclass(slots=True)
class TabletPlace:
    """One tablet and its replicas, as last known.

    Attributes:
        id: the tablet.
        partition: its part of the table.
        replicas: (uuid, public address) of each replica.
        leader: public address of the leader; None when not known.
    """

    id: TabletId
    partition: Partition
    replicas: tuple[tuple[ServerUuid, str], ...] = ()
    leader: str | None = None

    def addresses(self) -> list[str]:
        """Addresses to try: the leader, then the others."""
        others = [a for _, a in self.replicas if a and a != self.leader]
        return ([self.leader] if self.leader else []) + others


@dataclass(slots=True)
class OpenTable:
    """A table as the client knows it; `tablets` stand in partition order (`partition.locate`).

    Its columns are those that it was opened with; its ranges and tablets are looked up again when one does
    not answer, when a row has no place, and when `until_us` (monotonic time) is over.
    """

    id: TableId
    name: str
    schema: Schema
    partition_schema: PartitionSchema
    replicas: int
    options: dict[str, str]
    tablets: list[TabletPlace] = field(default_factory=list)
    until_us: int = 0

    def place(self, ps: PartitionSchema, number: int) -> TabletPlace | None:
        """Return the tablet that a partition schema gives a number; None if there is none. Any thread.

        Ranges may come and go in another thread between two looks at a table: then there is none either.
        """
        tablets = self.tablets
        if not 0 <= number < len(tablets):
            return None
        tablet = tablets[number]
        fits = tablet.partition.range == ps.all_ranges[number // ps.buckets]
        return tablet if fits else None

    def follow(self, fresh: "OpenTable") -> None:
        """Become what was opened anew, all of it at once."""
        assert fresh.id == self.id, f"{fresh.id} is not {self.id}"
        self.name, self.schema, self.replicas = fresh.name, fresh.schema, fresh.replicas
        self.partition_schema, self.tablets = fresh.partition_schema, fresh.tablets
        self.options, self.until_us = fresh.options, fresh.until_us


class Locations:
    """Finds tables and the leaders of their tablets. Runs on the client's loop.

    Args:
        masters: who know.
        max_age_ms: how old their word may be when the leader master does not answer; 0: it has to.
    """

    def __init__(self, masters: Masters, max_age_ms: int = 0) -> None:
        self._masters = masters
        self._max_age_ms = max_age_ms
        self._tables: dict[TableId, OpenTable] = {}

    def servers(self) -> list[str]:
        """Return the public addresses of the tablet servers that opened tables are on, as last known."""
        tablets = [t for table in self._tables.values() for t in table.tablets]
        return list(dict.fromkeys(a for t in tablets for _, a in t.replicas if a))

    async def open(self, name: str, timeout_ms: int, *, table_id: str = "") -> OpenTable:
        """Open a table by name, or else by id, asking the masters anew.

        Raises:
            NotFound: no such table.
        """
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
        )
        self._tables[table.id] = table
        await self.refresh(table, timeout_ms)
        return table

    async def refresh(self, table: OpenTable, timeout_ms: int = LOOKUP_TIMEOUT_MS) -> None:
        """Look all tablets of a table up again, and which ranges it has now. Its columns stay as opened.

        Whoever has found rows their tablets keeps the tablets, not their positions: those change.
        """
        answer = await self.ask(pb.TabletLocationsRequest(table_id=table.id), timeout_ms)
        found = {convert.partition_from_proto(t.partition): t for t in answer.tablets}
        places = []
        ps = convert.partition_schema_from_proto(answer.partition)
        for partition in partitions(table.schema, ps):
            tablet = found.get(partition)
            if tablet is None:
                raise Unavailable(
                    f"table {table.name!r} has no tablet for {partition} yet; its creation is under way"
                )
            places.append(_place(tablet, partition))
        table.partition_schema, table.tablets = ps, places
        table.until_us = self._masters.now_us() + answer.ttl_ms * 1000

    async def ask(
        self, request: pb.TabletLocationsRequest, timeout_ms: int
    ) -> pb.TabletLocationsResponse:
        """Ask the masters where tablets are."""
        answer: pb.TabletLocationsResponse = await self._masters.look_up(
            methods.TABLET_LOCATIONS, request, max_age_ms=self._max_age_ms, timeout_ms=timeout_ms
        )
        return answer

    def learn(
        self, tablet: TabletPlace, *, asked: str, leader: str | None, address: str | None
    ) -> None:
        """Take what a replica said about who leads.

        Args:
            tablet: the tablet asked about.
            asked: address of the replica that does not lead, or does not answer.
            leader: uuid of the leader by its word, if it knew one.
            address: the leader's public address by its word.
        """
        told = address or next((a for u, a in tablet.replicas if u == leader), None)
        if told and told != asked:
            tablet.leader = told
        elif tablet.leader == asked:
            tablet.leader = None


def _place(tablet: pb.TabletLocation, partition: Partition) -> TabletPlace:
    if tablet.state != RUNNING:
        # It may be replaced by another one, and what was written to it would be lost: nobody is asked yet.
        return TabletPlace(TabletId(tablet.id), partition)
    replicas = tuple((ServerUuid(r.uuid), r.address) for r in tablet.replicas)
    leader = next((r.address for r in tablet.replicas if r.leader and r.address), None)
    return TabletPlace(TabletId(tablet.id), partition, replicas, leader)


def follow(tablet: TabletPlace, table: OpenTable) -> bool:
    """Let a tablet's place be what a table that was looked up again says, also of the one that replaced it.

    Returns:
        Whether its part of the table is still there.
    """
    same = next((t for t in table.tablets if t.id == tablet.id), None)
    fresh = same or next((t for t in table.tablets if t.partition == tablet.partition), None)
    if fresh is None:
        return False
    tablet.id, tablet.replicas, tablet.leader = fresh.id, fresh.replicas, fresh.leader
    return True


def gone(tablet: TabletPlace, table: OpenTable) -> NotFound:
    """Return what to raise when a tablet's part of the table is not there any more."""
    return NotFound(
        f"tablet {tablet.id} is not one of table {table.name!r} any more: its range was dropped, with all "
        "rows that it had; open the table again"
    )
