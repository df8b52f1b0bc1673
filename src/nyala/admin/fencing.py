"""Fencing of orders: accepted from the leader master only, or from an operator who names this cluster.

Orders of a deposed master are rejected by (catalog incarnation, term). An operator's tool has no term: it
names the server and the cluster, so an order never reaches another server at a reused address.
"""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from nyala.common import addresses
from nyala.common.errors import CasFailed, Forbidden, InvalidArgument, NyalaError, Unavailable
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(slots=True)
class Fence:
    """The newest known term of the masters, in the catalog that a majority of them reports.

    Attributes:
        incarnation: incarnation of that catalog; empty: no majority has responded since this server started.
        term: highest term reported by any of them.
        reported: last catalog incarnation and term of each master, by address.
    """

    incarnation: str = ""
    term: int = 0
    reported: dict[str, tuple[str, int]] = field(default_factory=dict)

    def learn(self, master: str, masters: Collection[str], incarnation: str, term: int) -> None:
        """Process catalog and term in a heartbeat response of a master, leader or not.

        A catalog is accepted once a majority of its masters reports it: an old master that believes to lead
        can neither send orders to a server that has just started, nor redirect it.

        Args:
            master: its address.
            masters: addresses of all masters, according to it.
            incarnation: incarnation of its catalog; empty: none yet.
            term: its term.
        """
        if not incarnation or master not in masters:
            return
        addresses.keep_newest(self.reported, master, (incarnation, term))
        same = [t for m, (i, t) in self.reported.items() if i == incarnation and m in masters]
        if incarnation == self.incarnation:
            self.term = max(self.term, term)
        elif 2 * len(same) > len(masters):
            self.incarnation, self.term = incarnation, max(same)

    def check(self, order: pb.Fence) -> None:
        """Reject an order, except from the known leader master or a newer one of its catalog.

        Raises:
            Unavailable: no majority of masters has responded to a heartbeat yet; masters repeat the order.
            CasFailed: it was sent in an older term, for another catalog, or names neither.
        """
        if not self.incarnation:
            raise Unavailable(
                "this server has not received heartbeat responses from a majority of its masters yet; retry"
            )
        if order.catalog_incarnation != self.incarnation:
            raise CasFailed(
                "the order comes from another catalog than this server belongs to; send it to a "
                "server of that cluster",
                {"expected": self.incarnation, "found": order.catalog_incarnation},
            )
        if order.term < self.term:
            raise CasFailed(
                f"the order comes from a master that led in term {order.term}; the current term is "
                f"{self.term}: send "
                f"it through the leader master",
                {"expected": str(self.term), "found": str(order.term)},
            )
        self.term = max(self.term, order.term)


class Order(Protocol):
    """Fields of every order; a request without `cluster_id` is for masters only."""

    destination_uuid: str

    @property
    def fence(self) -> pb.Fence:
        """Fence of the master that sent it."""


class OrderFence:
    """Checks orders, and runs them to completion. Used on the event loop only.

    Args:
        env: tasks.
        identity: identity of this server.
        fence: the newest leader master known.
    """

    def __init__(self, env: Env, identity: Identity, fence: Fence) -> None:
        self._env = env
        self._identity = identity
        self._fence = fence

    def check(self, order: Order) -> None:
        """Reject an order for another server, or from neither the leader master nor an operator.

        Raises:
            InvalidArgument: it is for another server. Forbidden: for another cluster.
            CasFailed, Unavailable: see `Fence.check`.
        """
        if order.destination_uuid != self._identity.uuid:
            raise InvalidArgument(
                f"the order is for server {order.destination_uuid}; this is {self._identity.uuid}. "
                "The address has been reused: look the server up again"
            )
        cluster: str = getattr(order, "cluster_id", "")
        if not cluster:
            self._fence.check(order.fence)
            return
        own = self._identity.instance.cluster_id
        if cluster != own:
            raise Forbidden(
                f"the order is for cluster {cluster}, and this server belongs to {own or 'no cluster yet'}; "
                "check the address"
            )

    async def run_to_completion(self, work: Coroutine[Any, Any, object]) -> None:
        """Run an order to completion, even if the sender's deadline passes meanwhile.

        A cancelled order would leave a call in a lane that still works on its files while the next order
        starts.

        Raises:
            Unavailable: the disk failed or is full; the order may be repeated.
            NyalaError: as raised by the work.
        """

        async def guarded() -> Exception | None:
            try:
                await work
            except OSError as err:
                return Unavailable(f"the disk of this server failed ({err}); check it and retry")
            except NyalaError as err:
                return err
            return None

        failed = await asyncio.shield(self._env.tasks.spawn(guarded(), "tablet order"))
        if isinstance(failed, Exception):
            raise failed
