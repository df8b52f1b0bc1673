"""The replica engine with one journal: servers with the product's service of journals, and no masters."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import TableId, TabletId
from nyala.common.metrics import Metrics
from nyala.env.rpc import Handlers
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.replica.memory import MemoryTracker
from nyala.replica.status import State
from nyala.security.limits.caller_shares import CallerShares
from nyala.tserver.journals.resident import JournalMemory
from nyala.tserver.journals.service import JournalService
from nyala.tserver.tablets import Tablets
from tests.sim.systems.core_cluster import hosts
from tests.sim.systems.host_server import HostServer
from tests.sim.systems.moving_server import NO_ROWS, MovingServer
from tests.sim.systems.stores import GROUP

INFO = JournalInfo(GROUP, TableId(GROUP), "ops", 1, 1 << 30)
SMALL_BYTES = 8_000
"""Limit of a journal that is often full."""
MERGE_EVERY_MS = 400


class JournalHost(HostServer):
    """A process with one replica of a journal."""

    info = INFO

    async def start(self) -> None:
        """As there, with merges."""
        await super().start()
        self._env.tasks.spawn(self._merge(), "merges")

    def _create(self, directory: str) -> Any:
        return JournalMachine.create(self._env.files, directory, self.info)

    def _open(self, group: TabletId, directory: str) -> Any:
        return JournalMachine.open(self._env.files, directory)

    def handlers(self) -> Handlers:
        """The calls of journals, beside those of copies."""
        env, options = self._env, self.options
        tablets: Any = SimpleNamespace(journal=self._journal, journals=lambda: [])
        memory = MemoryTracker(options)
        resident = JournalMemory(env, tablets, memory)
        shares = CallerShares(options, Metrics())
        service = JournalService(env, tablets, memory, resident, options, shares)
        return {**super().handlers(), **service.handlers()}

    def _journal(self, tablet_id: str) -> Any:
        host: Any = self.host
        self._replica()  # it may be starting
        return Tablets(host, SimpleNamespace(), SimpleNamespace()).journal(tablet_id)  # type: ignore[arg-type]

    async def _merge(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(MERGE_EVERY_MS)
            replica = None if self.host is None else self.host.find(GROUP)
            if replica is None or replica.state is not State.RUNNING:
                continue
            machine = replica.machine
            if isinstance(machine, JournalMachine):
                try:
                    await replica.maintain(machine.prepare_compaction)
                except (NyalaError, OSError):
                    continue

    @property
    def machine(self) -> Any:
        """Nothing: the order of journals is followed elsewhere."""
        return NO_ROWS


class MovingJournalHost(JournalHost, MovingServer):
    """The same, whose replicas are created and deleted by copies."""

    padding = 0


class SmallJournalHost(JournalHost):
    """The same with a journal that is often full."""

    info = replace(INFO, limit_bytes=SMALL_BYTES)


class SmallMovingJournalHost(MovingJournalHost):
    """The same with replicas that are moved."""

    info = SmallJournalHost.info


HOSTS = {
    (False, False): hosts(JournalHost),
    (True, False): hosts(MovingJournalHost),
    (False, True): hosts(SmallJournalHost),
    (True, True): hosts(SmallMovingJournalHost),
}
"""Makers of servers: whether replicas are moved, and whether the journal is often full."""
