"""Dispatcher of orders to tablet servers; lost orders are derived again from catalog and reports.

Rules: one order per (server, tablet) at a time, a bounded number per server. An order is looked up in the
catalog when it is sent, so that a superseded one is not sent. No order is sent after leadership has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.catalog.actions import (
    Action,
    AlterTabletAction,
    CancelCopyAction,
    CopyAction,
    CreateTabletAction,
    DeleteTabletAction,
)
from nyala.master.catalog.catalog import Catalog
from nyala.master.ddl.creation_timeouts import Creations
from nyala.master.orders import reconcile
from nyala.master.orders.attempts import UnansweredOrders
from nyala.master.orders.messenger import Messenger
from nyala.master.orders.repeats import Repeats
from nyala.master.repair.repairer import Repairer
from nyala.master.repair.round_robin import ReplicaRoundRobin
from nyala.master.tservers import TServer, TServers

log = logging.getLogger(__name__)


MAX_REPLICAS_CHECKED = 200
"""Number of replicas, and of tombstones, per server that are checked for deletion in one interval."""


class Dispatcher:
    """Orders of one leader in one term. On the loop only.

    Args:
        env: calls, tasks, clock.
        catalog: catalog of this term.
        servers: the tablet servers and their reports.
        term: the term in which this master leads.
        options: options of this master.
        on_change: called when a response may change the catalog.

    Attributes:
        repairs: repair of lost replicas.
        creations: progress of tablets that are being created.
        attempts: the orders that are unanswered, or that failed.
    """

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        servers: TServers,
        term: int,
        options: Options,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._servers = servers
        self._term = term
        self._options = options
        self._on_change = on_change
        now_us = env.clock.monotonic_us
        self._messenger = Messenger(env, catalog, servers, term, options.order_timeout_ms)
        self._turns = ReplicaRoundRobin(MAX_REPLICAS_CHECKED)
        self._tombstones = ReplicaRoundRobin(MAX_REPLICAS_CHECKED, lambda s: s.tombstones)
        self._repeats = Repeats(options.order_interval_ms * 1000)
        self.repairs = Repairer(catalog, servers, term, options, now_us)
        self.creations = Creations(options.tablet_creation_timeout_ms * 1000)
        self._queued: dict[ServerUuid, dict[Action, None]] = {}
        self._sending: dict[ServerUuid, dict[tuple[ServerUuid, TabletId], None]] = {}
        self.attempts = UnansweredOrders()
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._stopped = False

    def start(self) -> None:
        """Start deriving orders each interval."""
        self._spawn(self._derive(), "derive orders")
        self._spawn(self._repair(), "repair tablets")

    def stop(self) -> None:
        """Send nothing more; orders in flight are cancelled, and their effect is harmless (S0.41)."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()

    def enqueue(self, actions: Sequence[Action]) -> None:
        """Send actions in the background; one that is queued or under way is not sent twice.

        A deletion that repeats waits (`repeats.py`): it is dropped here, and derived again later.
        """
        if self._stopped:
            return
        now_us = self._env.clock.monotonic_us()
        for action in actions:
            if not self._repeats.may_send(action, now_us):
                continue
            if (action.server, action.tablet) not in self._sending.get(action.server, {}):
                self._queued.setdefault(action.server, {})[action] = None
        for server in dict.fromkeys(a.server for a in actions):
            self._send_more(server)

    def reconcile(self, servers: Sequence[TServer] | None = None) -> None:
        """Enqueue the orders that catalog and latest reports call for.

        Args:
            servers: to check; None: all that are alive.
        """
        if servers is None:
            servers = self._servers.alive(self._env.clock.monotonic_us())
        known = self._servers.known_in(self._term, servers)
        self.enqueue(reconcile.orders_for(self._catalog, known))

    def reported(self, server: TServer, tablets: Sequence[TabletId], *, full: bool) -> None:
        """Enqueue the orders that a report calls for, and check its tablets first in the next repair.

        Args:
            server: the server that reported.
            tablets: tablets in the report.
            full: True if the report has all tablets of the server.
        """
        self.repairs.reported(tablets)
        if full:
            self._repeats.restarted(server.uuid)
            self.reconcile([server])
        elif server.full_in_term == self._term:
            self.enqueue(reconcile.after_report(self._catalog, server, tablets))

    def pending(self) -> int:
        """Return the number of orders queued or in flight."""
        queued = sum(len(actions) for actions in self._queued.values())
        return queued + sum(len(keys) for keys in self._sending.values())

    async def _derive(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(self._options.order_interval_ms)
            try:
                alive = self._servers.alive(self._env.clock.monotonic_us())
                known = self._servers.known_in(self._term, alive)
                self.enqueue(reconcile.orders_for(self._catalog, known, self._next_replicas))
            except Exception as bug:  # the task's top: without it lost orders are not sent again
                log.error("orders were not derived", exc_info=bug)

    def _next_replicas(self, server: TServer) -> list[TabletId]:
        return [*self._turns.next(server), *self._tombstones.next(server)]

    async def _repair(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(self._options.repair_interval_ms)
            try:
                self.enqueue(self.repairs.due_orders())
            except Exception as bug:  # the task's top: without it no replica is replaced
                log.error("tablets were not checked for repair", exc_info=bug)

    def _spawn(self, work: Coroutine[Any, Any, object], name: str) -> None:
        task = self._env.tasks.spawn(work, name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _send_more(self, server: ServerUuid) -> None:
        queued = self._queued.get(server, {})
        sending = self._sending.setdefault(server, {})
        while len(sending) < self._options.orders_per_server:
            action = next((a for a in queued if (a.server, a.tablet) not in sending), None)
            if action is None:
                break
            del queued[action]
            sending[action.server, action.tablet] = None
            self._spawn(self._send(action), f"order {type(action).__name__} {action.tablet}")
        if not queued:
            self._queued.pop(server, None)
        if not sending:
            del self._sending[server]

    async def _send(self, action: Action) -> None:
        self.attempts.begun(action, self._env.clock.monotonic_us())
        try:
            await self._order(action)
            self.attempts.ended(action)
        except NyalaError as err:
            # Not answered, or refused: derived again at the next interval while it is still needed.
            if self.attempts.failed(action, err):
                log.warning("order failed: %s: %s", action, err)
        finally:
            self._repeats.ended(action, self._env.clock.monotonic_us())
            # Absent if another order to this server for this tablet was the last one and ended before.
            self._sending.get(action.server, {}).pop((action.server, action.tablet), None)
        self._send_more(action.server)

    async def _order(self, action: Action) -> None:
        if isinstance(action, CreateTabletAction):
            self.creations.record_attempt(action.tablet, action.server)
        server = self._servers.get(action.server)
        answer = None if server is None else await self._messenger.send(action, server)
        if server is not None and answer is not None:
            self._take(action, server, answer)

    def _take(self, action: Action, server: TServer, answer: Any) -> None:
        """Record the effect of a response before the server's next report has it."""
        if isinstance(action, CreateTabletAction):
            server.replicas.setdefault(action.tablet, "BOOTSTRAPPING")
        elif isinstance(action, AlterTabletAction):
            server.time = max(server.time, answer.hybrid_time)
            server.note_version(action.tablet, answer.schema_version)
            self._on_change()
        elif isinstance(action, DeleteTabletAction):
            server.replicas.pop(action.tablet, None)
        elif isinstance(action, CopyAction):
            self.repairs.record_copy_progress(action, answer.copy)
        elif isinstance(action, CancelCopyAction):
            self.repairs.cancelled(action)
