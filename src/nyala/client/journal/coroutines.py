"""The coroutines of an open journal, for recipes and the simulator, and its handle for both interfaces."""

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from nyala.client.journal.builder import StepParts
from nyala.client.journal.core import LIMIT_OPTION, JournalCore
from nyala.client.journal.delivery import StepOutcome
from nyala.client.journal.items import Entry, Event, Key, KeyEvent
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.pages import key_pages, read_key
from nyala.wire.proto import journal_pb2 as pb


class JournalCoroutines:
    """An open journal. Used on the client's loop only.

    Args:
        core: journals of the client.
        journal: the open journal.

    Attributes:
        env: the client's environment.
        id: id of the journal.
    """

    def __init__(self, core: JournalCore, journal: OpenJournal) -> None:
        self._core = core
        self._journal = journal
        self.env = core.env
        self.id: str = journal.id

    def builder(self) -> StepParts:
        """Return a step whose `parts` are given to `step`."""
        return StepParts(self.id)

    async def step(
        self,
        conditions: Sequence[pb.JournalCondition],
        changes: Sequence[pb.JournalChange],
        timeout_ms: int | None = None,
        try_ms: int | None = None,
    ) -> StepOutcome:
        """Execute a step; see `StepDelivery.execute`.

        Args:
            conditions: on the state before it.
            changes: that take effect together.
            timeout_ms: for all tries; None: the client's.
            try_ms: for one try; None: the default, and the step may share an operation with others.
        """
        return await self._core.step(self._journal, conditions, changes, timeout_ms, try_ms)

    async def last_id(self, log: str) -> int:
        """Return the id of a log's last change; 0: there is no such log."""
        return await self._core.log(self._journal, log).last_id()

    def entries(self, log: str, after: int = 0) -> AsyncGenerator[list[Entry], None]:
        """Yield pages of the valid entries of a log with ids above `after`."""
        return self._core.log(self._journal, log).entry_pages(after)

    def tail(self, log: str, after: int = 0) -> AsyncGenerator[list[Event], None]:
        """Yield what changes in a log, without end; see `tails.tail`."""
        return self._core.tail(self._core.log(self._journal, log), after)

    async def get(self, key: str) -> Key | None:
        """Return a key, or None if there is none."""
        return await read_key(self._core.reads, self._journal, key)

    def keys(self, prefix: str) -> AsyncGenerator[list[Key], None]:
        """Yield pages of the keys with a prefix."""
        return key_pages(self._core.reads, self._journal, prefix)

    def watch(self, prefix: str, after: int = 0) -> AsyncGenerator[list[KeyEvent], None]:
        """Yield what changes in the keys with a prefix, without end; see `tails.watch`."""
        return self._core.watch(self._journal, prefix, after)


class JournalHandle:
    """An open journal, without its calls.

    Args:
        core: journals of the client.
        journal: the open journal.
    """

    kind: ClassVar[str]
    """Name of the class in `repr`."""

    def __init__(self, core: JournalCore, journal: OpenJournal) -> None:
        self._core = core
        self._journal = journal

    @property
    def name(self) -> str:
        """Name of the journal when it was opened."""
        return self._journal.name

    @property
    def id(self) -> str:
        """The journal's id; a re-created journal has another one."""
        return self._journal.id

    @property
    def replicas(self) -> int:
        """Number of replicas that it should have, as of its opening."""
        return self._journal.replicas

    @property
    def journal_bytes(self) -> int:
        """Most bytes of its valid entries and keys, as of its opening."""
        return int(self._journal.options.get(LIMIT_OPTION, "0"))

    def coroutines(self) -> JournalCoroutines:
        """Return the journal's coroutines, for recipes, whose logic runs on the client's loop."""
        return JournalCoroutines(self._core, self._journal)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"
