"""Logic of journals as coroutines over `env`, run by `Connection` and by the simulator."""

from collections.abc import AsyncGenerator, Sequence

from nyala.client.checks import check_int, check_replicas, check_text
from nyala.client.core import ClientCore
from nyala.client.journal.delivery import StepDelivery, StepOutcome
from nyala.client.journal.items import Event, KeyEvent
from nyala.client.journal.locations import JOURNAL, JournalLocations, OpenJournal
from nyala.client.journal.pages import LogReader
from nyala.client.journal.polling import Poller
from nyala.client.journal.reads import JournalReads
from nyala.client.journal.tails import tail, watch
from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.wire.proto import journal_pb2, nyala_pb2

DEFAULT_JOURNAL_BYTES = 1 << 30
LIMIT_OPTION = "journal_bytes"
"""Option of a journal: most bytes of its valid entries and keys."""


def check_journal(name: str, replicas: int, journal_bytes: int) -> None:
    """Check the arguments of a new journal.

    Args:
        name: of the journal.
        replicas: number of them.
        journal_bytes: most bytes of its valid entries and keys.

    Raises:
        InvalidArgument: one of them is wrong.
    """
    check_text("name", name)
    check_replicas(replicas, "journal")
    check_int("journal_bytes", journal_bytes, 1)


class JournalCore:
    """Journals of one client. Used on the client's loop only.

    Args:
        core: the client; sequence numbers of steps are counted with those of its writes.

    Attributes:
        env: the client's environment.
        locations: locations of journals.
        reads: reads of journals.
    """

    def __init__(self, core: ClientCore) -> None:
        options = core.options
        self._core = core
        self.env = core.env
        self._timeout_ms = options.timeout_ms
        self.locations = JournalLocations(core.masters, core.locations, options.lookup_max_age_ms)
        self.reads = JournalReads(core.env, self.locations, core.clock, options.timeout_ms)
        self._steps = StepDelivery(
            core.env, self.locations, core.clock, core.session.sequences, core.client_id,
            options.since if options.keep_results else None,
        )  # fmt: skip

    async def create(
        self, name: str, replicas: int, journal_bytes: int, exist_ok: bool = False
    ) -> OpenJournal:
        """Create a journal and open it when it runs.

        Args:
            name: unique among tables and journals.
            replicas: odd.
            journal_bytes: most bytes of its valid entries and keys.
            exist_ok: a journal of this name is as good.

        Raises:
            AlreadyPresent, InvalidArgument, NotReady, OutcomeUnknown: as for tables.
        """
        spec = nyala_pb2.TableSpec(
            name=name, replicas=replicas, kind=JOURNAL, options={LIMIT_OPTION: str(journal_bytes)}
        )
        try:
            return await self._core.ddl.create(spec, self._open)
        except AlreadyPresent as err:
            if not exist_ok:
                raise
            try:
                return await self._core.ddl.existing(name, self._open, JOURNAL)
            except InvalidArgument:  # it is a table
                raise err from None

    async def _open(self, journal_id: str, timeout_ms: int) -> OpenJournal:
        return await self.locations.open("", timeout_ms, journal_id=journal_id)

    async def open(self, name: str) -> OpenJournal:
        """Open a journal by name.

        Raises:
            NotFound: no such journal; the message names those there are.
            InvalidArgument: it is a table.
        """
        return await self.locations.open(name, self._timeout_ms)

    async def summaries(
        self, *, dropped: bool = False, max_age_ms: int = 0
    ) -> list[nyala_pb2.TableSummary]:
        """Return the journals, by name; or those that were dropped and can be recalled."""
        return await self.locations.summaries(
            self._timeout_ms, dropped=dropped, max_age_ms=max_age_ms
        )

    async def drop(self, name: str, reserve_seconds: int = 0) -> None:
        """Drop a journal; its name is free on return.

        Raises:
            NotFound: no such journal.
            InvalidArgument: it is a table.
        """
        await self._core.ddl.drop_table(name, reserve_seconds, kind=JOURNAL)

    async def recall(self, journal_id: str, new_name: str = "") -> OpenJournal:
        """Recall a journal that was dropped with a reserve, under its name or a new one.

        Raises:
            NotFound: no dropped journal has this id (any more).
            AlreadyPresent: the name is taken.
        """
        return await self._core.ddl.recall(journal_id, new_name, self._open, JOURNAL)

    async def step(
        self,
        journal: OpenJournal,
        conditions: Sequence[journal_pb2.JournalCondition],
        changes: Sequence[journal_pb2.JournalChange],
        timeout_ms: int | None = None,
        try_ms: int | None = None,
    ) -> StepOutcome:
        """Execute a step; see `StepDelivery.execute`.

        Args:
            journal: the journal.
            conditions: on the state before it.
            changes: that take effect together.
            timeout_ms: for all tries; None: the client's.
            try_ms: for one try; None: the default.
        """
        timeout_ms = timeout_ms or self._timeout_ms
        return await self._steps.execute(journal, conditions, changes, timeout_ms, try_ms)

    def log(self, journal: OpenJournal, name: str) -> LogReader:
        """Return a reader of a log; nothing is sent yet."""
        return LogReader(self.reads, journal, name)

    def tail(self, log: LogReader, after: int = 0) -> AsyncGenerator[list[Event], None]:
        """Yield what changes in a log, without end; see `tails.tail`."""
        return tail(log, self._poller(log.journal), after)

    def watch(
        self, journal: OpenJournal, prefix: str, after: int = 0
    ) -> AsyncGenerator[list[KeyEvent], None]:
        """Yield what changes in the keys with a prefix, without end; see `tails.watch`.

        Args:
            journal: the journal.
            prefix: prefix of the keys.
            after: id; the reader has seen everything up to it.
        """
        return watch(self.reads, self._poller(journal), journal, prefix, after)

    def _poller(self, journal: OpenJournal) -> Poller:
        return Poller(self._core.env, self.locations, journal, self._timeout_ms)
