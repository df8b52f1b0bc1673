"""Journals by name, and the location of their one tablet."""

from dataclasses import dataclass

from nyala.client.cluster.ddl import describe
from nyala.client.cluster.masters import Masters
from nyala.client.cluster.tablet_cache import (
    LOOKUP_TIMEOUT_MS,
    OLD_TIMEOUT_MS,
    TabletCache,
    TabletLocation,
    relocate,
)
from nyala.common.errors import LogGone, NotFound, Unavailable
from nyala.common.ids import TableId
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

JOURNAL = 1
"""`TableSpec.kind` of journals."""


@dataclass(slots=True)
class OpenJournal:
    """A journal as the client knows it.

    Attributes:
        id: id of the journal, unique among tables and journals.
        name: at its opening.
        replicas: that it should have.
        options: by name.
        tablet: its only one; updated in place.
        seen: highest id that this client has seen; later reads of followers include it.
    """

    id: TableId
    name: str
    replicas: int
    options: dict[str, str]
    tablet: TabletLocation
    seen: int = 0

    def saw(self, change_id: int) -> None:
        """Record an id that the client has seen."""
        self.seen = max(self.seen, change_id)

    def saw_gone(self, err: LogGone) -> None:
        """Record that the client has seen a state without a log."""
        self.saw(int(err.details.get("last", 0)))


class JournalLocations:
    """Finds journals and the replicas of their tablets. Runs on the client's loop.

    Args:
        masters: masters of the cluster.
        tablets: asks the masters for locations.
        lookup_max_age_ms: see `ClientOptions`.

    Attributes:
        tablets: locations of tablets.
    """

    def __init__(self, masters: Masters, tablets: TabletCache, lookup_max_age_ms: int) -> None:
        self._masters = masters
        self.tablets = tablets
        self._lookup_max_age_ms = lookup_max_age_ms

    async def open(self, name: str, timeout_ms: int, *, journal_id: str = "") -> OpenJournal:
        """Open a journal by name, or else by id.

        Args:
            name: used when `journal_id` is empty.
            timeout_ms: deadline, from now.
            journal_id: empty: by name.

        Raises:
            NotFound: no such journal; the message names those there are.
            InvalidArgument: it is a table.
        """
        try:
            answer = await describe(
                self._masters, name, timeout_ms, table_id=journal_id,
                max_age_ms=self._lookup_max_age_ms, kind=JOURNAL,
            )  # fmt: skip
        except NotFound:
            if journal_id:
                raise
            names = [j.name for j in await self.summaries(timeout_ms)]
            shown = ", ".join(names[:10]) or "none yet"
            raise NotFound(f"no journal {name!r}; the journals are: {shown}") from None
        table = answer.table
        tablet = await self._tablet(TableId(answer.id), table.name, timeout_ms)
        return OpenJournal(
            TableId(answer.id), table.name, table.replicas, dict(table.options), tablet
        )

    async def summaries(
        self, timeout_ms: int, *, dropped: bool = False, max_age_ms: int = 0
    ) -> list[pb.TableSummary]:
        """Return the journals, by name; or those that were dropped and can be recalled.

        Args:
            timeout_ms: for the answer.
            dropped: the dropped ones.
            max_age_ms: largest age of another master's answer; 0: the leader's only.
        """
        answer: pb.ListTablesResponse = await self._masters.look_up(
            methods.LIST_TABLES,
            pb.ListTablesRequest(kind=JOURNAL, dropped=dropped),
            max_age_ms=max_age_ms,
            timeout_ms=timeout_ms,
        )
        return sorted(answer.tables, key=lambda t: t.name)

    async def refresh(self, journal: OpenJournal, timeout_ms: int = LOOKUP_TIMEOUT_MS) -> None:
        """Look up the replicas of a journal again; a replaced tablet gets the id of its successor.

        Raises:
            NotFound: the journal was dropped.
        """
        fresh = await self._tablet(journal.id, journal.name, timeout_ms)
        relocate(journal.tablet, fresh)

    async def refresh_shared(self, journal: OpenJournal, timeout_ms: int = OLD_TIMEOUT_MS) -> None:
        """As `refresh`; the answer may be another caller's, 100 ms old.

        For calls that a server has failed, of which there may be many at once.

        Args:
            journal: that is looked up.
            timeout_ms: for the answer.
        """
        request = pb.TabletLocationsRequest(table_id=journal.id)
        answer, _ = await self.tablets.ask_shared(request, timeout_ms)
        relocate(journal.tablet, self._only_tablet(answer, journal.name))

    async def _tablet(self, journal_id: TableId, name: str, timeout_ms: int) -> TabletLocation:
        request = pb.TabletLocationsRequest(table_id=journal_id)
        return self._only_tablet(await self.tablets.ask(request, timeout_ms), name)

    def _only_tablet(self, answer: pb.TabletLocationsResponse, name: str) -> TabletLocation:
        if not answer.tablets:
            raise Unavailable(f"journal {name!r} has no tablet yet; its creation is under way")
        return self.tablets.location(answer.tablets[0])
