"""Heartbeats to every master: a full report to a new leader, then incremental ones (S0.21-S0.27).

One task per master, so that a hanging one delays no other. Heartbeats are sent every `server_heartbeat_ms`,
and to masters that follow less often, as long as another one leads and answers. A change of a replica is
reported at once to the leader master, or to all while none is known to lead.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nyala.common.errors import NyalaError, Rejected
from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.tserver.reports import ChangeLog, MasterView
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

GATHER_MS, GATHER_MOST_MS = 20, 100
"""Delays in milliseconds that batch changes into one report: the first one, and the maximum."""
FOLLOWER_INTERVALS = 4
"""Heartbeat intervals between two heartbeats to a master that follows, while the leader answers."""
LEADER_INTERVALS = 2
"""Heartbeat intervals without an answer of the leader after which the others get heartbeats as often."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """Source of the reports, and receiver of the responses.

    Attributes:
        server: returns this server's registration with the current hybrid time.
        tablets: returns reports of the given tablets; None: of all replicas.
        on_response: called and awaited with each response, before the next report.
        on_refused: called when a master rejects this server.
        list_version: returns the version of this server's copy of the server list.
        opening: returns the number of replicas still to open; 0: the server serves.
        sizes: returns the sizes of the tablets that it leads, of tables with a quota.
    """

    server: Callable[[], pb.ServerInfoResponse]
    tablets: Callable[[Sequence[TabletId] | None], list[pb.TabletReport]]
    on_response: Callable[[str, pb.HeartbeatResponse], Awaitable[None]]
    on_refused: Callable[[str, Rejected], None] = lambda address, err: None
    list_version: Callable[[], pb.ListVersion] = pb.ListVersion
    opening: Callable[[], int] = int
    sizes: Callable[[], list[pb.TabletSize]] = list


class Heartbeater:
    """Sends heartbeats to every master. Used on the event loop only.

    Args:
        env: calls and tasks.
        masters: returns the public addresses of all masters; called after each report.
        reporter: see `Reporter`.
        interval_ms: between two heartbeats to one master without changes.
        unresponsive_ms: time without a heartbeat after which a master takes this server for dead.
    """

    def __init__(
        self,
        env: Env,
        masters: Callable[[], Sequence[str]],
        reporter: Reporter,
        interval_ms: int,
        unresponsive_ms: int,
    ) -> None:
        self._env = env
        self._masters = masters
        self._reporter = reporter
        self._interval_ms = interval_ms
        self._unresponsive_us = 1000 * unresponsive_ms
        # Masters that do not answer: since when, and whether it was logged.
        self._silent: dict[str, tuple[int, bool]] = {}
        self._follower_interval_us = 1000 * max(
            interval_ms, min(FOLLOWER_INTERVALS * interval_ms, unresponsive_ms // 3)
        )
        self._changes = ChangeLog()
        self._leader: str | None = None  # the master that last reported that it leads
        self._leader_answer_us = 0
        self._views: dict[str, MasterView] = {}
        self._triggers: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """Start reporting to each master; if started already, report all replicas again."""
        for address, view in self._views.items():
            view.request_full()
            self._triggers[address].set()
        self._update_masters()

    def _update_masters(self) -> None:
        """Update the set of masters to report to."""
        masters = self._masters()
        for removed in [a for a in self._views if a not in masters]:
            del self._views[removed]
            self._triggers.pop(removed).set()
            self._silent.pop(removed, None)
        for address in masters:
            if address not in self._views:
                self._views[address], self._triggers[address] = MasterView(), asyncio.Event()
                self._env.tasks.spawn(self._report_to(address), f"heartbeat {address}")

    def changed(self, tablet: TabletId) -> None:
        """Schedule a report of a replica whose configuration, leader or state changed."""
        self._changes.note(tablet)
        for address in self._triggers if self._leader not in self._triggers else (self._leader,):
            self._triggers[address].set()

    @property
    def leader(self) -> str | None:
        """Address of the master that last reported that it leads; None: not known at present."""
        return self._leader

    def views(self) -> dict[str, MasterView]:
        """Return the acknowledged state of each master."""
        return dict(self._views)

    async def _report_to(self, address: str) -> None:
        view, trigger = self._views[address], self._triggers[address]
        changed_reports = 0
        while self._views.get(address) is view:
            trigger.clear()
            try:
                await self._once(address, view)
            except NyalaError as err:
                self._note_silence(address, err)
            except Exception as err:  # a full disk or a bug must not stop the heartbeats
                log.error("heartbeat to master %s failed", address, exc_info=err)
            else:
                self._note_answer(address)
                self._update_masters()
                changed = await self._pause(address, view, trigger, changed_reports)
                changed_reports = changed_reports + 1 if changed else 0
                continue
            self._update_masters()
            await self._env.tasks.sleep_ms(self._interval_ms)

    def _note_silence(self, address: str, err: NyalaError) -> None:
        """Log once that a master has answered no heartbeat for so long that it takes this server for dead."""
        log.debug("heartbeat to master %s: %s", address, err)
        now_us = self._env.clock.monotonic_us()
        since_us, logged = self._silent.get(address, (now_us, False))
        late = now_us - since_us >= self._unresponsive_us
        self._silent[address] = since_us, logged or late
        if late and not logged:
            log.warning(
                "master %s has answered no heartbeat for %d s; if it leads, this server counts as dead: %s",
                address, (now_us - since_us) // 1_000_000, err,
            )  # fmt: skip

    def _note_answer(self, address: str) -> None:
        _, logged = self._silent.pop(address, (0, False))
        if logged:
            log.info("master %s answers heartbeats again", address)

    async def _pause(
        self, address: str, view: MasterView, trigger: asyncio.Event, changed_reports: int
    ) -> bool:
        """Wait for a change or until the next heartbeat is due; return whether there was a change.

        A short delay between reports batches changes, and a longer one while changes continue: each report
        with changes costs the masters a write to their log.

        Args:
            address: of the master.
            view: its acknowledged state.
            trigger: set when it is to be reported to.
            changed_reports: number of reports with changes before this pause, without one in between.
        """
        loop, clock = asyncio.get_running_loop(), self._env.clock
        began, sent_us = self._changes.version, clock.monotonic_us()
        while True:
            timer = loop.call_later(self._interval_ms / 1000, trigger.set)
            try:
                await trigger.wait()
            finally:
                timer.cancel()
            due = clock.monotonic_us() - sent_us >= self._follower_interval_us
            if due or not self._may_wait(address, view, clock.monotonic_us()):
                break
            trigger.clear()
        if self._changes.version == began:
            return False
        gathered_ms = min(GATHER_MS * (1 + changed_reports), GATHER_MOST_MS, self._interval_ms)
        await self._env.tasks.sleep_ms(gathered_ms)
        return True

    def _may_wait(self, address: str, view: MasterView, now_us: int) -> bool:
        """Return whether a heartbeat to a master can wait: it follows, and another one answers as the leader.

        A new leader is thus found as soon as without this: its predecessor stops answering, or says so. A
        master that has not reported the leader's catalog yet cannot wait: orders need a majority of them.

        Args:
            address: of the master.
            view: its acknowledged state.
            now_us: the monotonic time.
        """
        leader = self._views.get(self._leader or "")
        if leader is None or leader is view or leader.catalog != view.catalog:
            return False
        silent_us = now_us - self._leader_answer_us
        answers = silent_us < LEADER_INTERVALS * self._interval_ms * 1000
        return answers and not view.needs_full and self._views.get(address) is view

    async def _once(self, address: str, view: MasterView) -> None:
        full, changed = view.begin(self._changes)
        reports = self._reporter.tablets(None if full else changed)
        request = pb.HeartbeatRequest(
            server=self._reporter.server(),
            full=full,
            report_sequence=view.sequence,
            tablets=reports,
            server_list=self._reporter.list_version(),
            opening=self._reporter.opening(),
            sizes=self._reporter.sizes() if address == self._leader else (),
        )
        try:
            response = await self._env.rpc.call(
                address, methods.HEARTBEAT, request, timeout_ms=max(1000, 4 * self._interval_ms)
            )
        except NyalaError as err:
            self._leads(address, leader=False)
            if isinstance(err, Rejected):
                self._reporter.on_refused(address, err)
            raise
        self._leads(address, leader=response.leader)
        view.catalog = response.catalog_incarnation
        view.on_response(
            leader=response.leader,
            needs_full=response.needs_full_report,
            acknowledged_sequence=response.acknowledged_sequence,
        )
        await self._reporter.on_response(address, response)

    def _leads(self, address: str, *, leader: bool) -> None:
        if leader:
            self._leader, self._leader_answer_us = address, self._env.clock.monotonic_us()
        elif self._leader == address:
            self._leader = None
            for trigger in self._triggers.values():  # one of them may lead now
                trigger.set()
