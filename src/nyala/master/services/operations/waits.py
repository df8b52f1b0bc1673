"""Waits of operations: calls to tablet servers, and conditions that their reports fulfil."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import Action
from nyala.master.leader import Term
from nyala.master.orders.attempts import Attempted
from nyala.master.orders.order_requests import METHODS, is_wanted
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb

MAX_WAITS = 1000
"""Maximum number of waits in the answer about one operation."""


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The state from which waits are derived.

    Attributes:
        term: state of the leader master.
        servers: the tablet servers known to it.
        now_us: monotonic time, in microseconds.
    """

    term: Term
    servers: TServers
    now_us: int

    def orders(self, tablet: TabletId, server: ServerUuid | None = None) -> list[pb.OperationWait]:
        """Return the orders for a tablet that are unanswered, or that failed and are still wanted.

        Args:
            tablet: id of the tablet.
            server: only orders to this server; None: to all.
        """
        catalog = self.term.catalog
        return [
            self._order(action, attempted)
            for action, attempted in self.term.dispatcher.attempts.of(tablet, server)
            if attempted.under_way or is_wanted(catalog, self.servers, action)
        ]

    def server(
        self, tablet: TabletId, server: ServerUuid, condition: str
    ) -> list[pb.OperationWait]:
        """Return what a tablet waits for at one server.

        Args:
            tablet: id of the tablet.
            server: id of the server.
            condition: text of what it waits for if no order to the server is unanswered or failed.
        """
        return self.orders(tablet, server) or [self._condition(tablet, server, condition)]

    def _order(self, action: Action, attempted: Attempted) -> pb.OperationWait:
        method = METHODS[type(action)].path.rpartition("/")[2]
        return pb.OperationWait(
            what=f"call {method}",
            tablet_id=action.tablet,
            server=action.server,
            address=self._address(action.server),
            since_ms=(self.now_us - attempted.since_us) // 1000,
            attempts=attempted.count,
            unanswered=attempted.under_way,
            last_error="" if attempted.error is None else str(attempted.error),
        )

    def _condition(self, tablet: TabletId, uuid: ServerUuid, condition: str) -> pb.OperationWait:
        server = self.servers.get(uuid)
        wait = pb.OperationWait(tablet_id=tablet, server=uuid, address=self._address(uuid))
        if server is None:
            wait.what = f"{condition}: the server has not reported to this leader"
        elif not self.servers.is_alive(server, self.now_us):
            wait.what = f"{condition}: the server sends no heartbeats"
            wait.since_ms = (self.now_us - server.last_heartbeat_us) // 1000
        else:
            wait.what = condition
        return wait

    def _address(self, uuid: ServerUuid) -> str:
        if (server := self.servers.get(uuid)) is not None:
            return server.registration.address
        listed = self.term.catalog.servers.get(uuid)
        return "" if listed is None else listed.address


def first(waits: Iterator[pb.OperationWait], limit: int) -> tuple[list[pb.OperationWait], int]:
    """Return the first waits, and the number of the others.

    Args:
        waits: of one operation.
        limit: maximum number of waits to return.
    """
    shown = list(islice(waits, limit))
    return shown, sum(1 for _ in waits)
