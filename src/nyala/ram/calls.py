"""ServerCalls: requests of the leader to the servers, with its epoch, below which they refuse requests."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from nyala.common.errors import (
    NotFound,
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    StaleEpoch,
)
from nyala.env.env import Env
from nyala.env.rpc import Method
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.state import CoordinatorState
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

log = logging.getLogger(__name__)


def owned_message(tablet: HashRange) -> pb.Owned:
    """Return a tablet as a message."""
    return pb.Owned(table_id=tablet.table_id, first=tablet.first, last=tablet.last)


def range_of(message: pb.Owned) -> HashRange:
    """Return the tablet of a message."""
    return HashRange(message.table_id, message.first, message.last)


class ServerCalls:
    """Calls to servers, one try each. What fails is owed: pings show it, and all tablets are sent again.

    Args:
        env: the environment.
        ensemble: name of the ensemble.
        state: for the addresses.
        timeout_ms: of each call.

    Attributes:
        epoch: of the leader.
    """

    def __init__(self, env: Env, ensemble: str, state: CoordinatorState, timeout_ms: int) -> None:
        self._env = env
        self._ensemble = ensemble
        self._state = state
        self._timeout_ms = timeout_ms
        self.epoch = 0

    async def call(
        self, server: ServerId, method: Method, make: Callable[..., Any], **fields: Any
    ) -> Any:
        """Send a request once; return the response, or None if there is none.

        Args:
            server: id of the server.
            method: of the service.
            make: class of the request.
            fields: of the request, without the fence.

        Raises:
            NotLeading: a server knows a later leader.
        """
        found = self._state.servers.servers.get(server)
        if found is None:
            return None
        fence = pb.Fence(ensemble=self._ensemble, epoch=self.epoch, server=server.message())
        try:
            return await self._env.rpc.call(
                found.up.address, method, make(fence=fence, **fields), timeout_ms=self._timeout_ms
            )
        except StaleEpoch as err:
            raise NotLeading(f"server {server} knows a later leader: {err.message}") from err
        except NyalaError as err:
            log.debug("server %s does not answer: %s", server, err)
            return None

    async def take(self, server: ServerId, tablets: Sequence[HashRange]) -> None:
        """Have a server own tablets."""
        sent = [owned_message(t) for t in tablets]
        await self.call(
            server, methods.RAM_TAKE_OWNERSHIP, pb.TakeTabletOwnershipRequest, tablets=sent
        )

    async def drop(self, server: ServerId, table_id: int) -> None:
        """Have a server own nothing of a table."""
        await self.call(
            server, methods.RAM_DROP_OWNERSHIP, pb.DropTabletOwnershipRequest, table_id=table_id
        )

    async def split(self, server: ServerId, table_id: int, split_hash: int) -> None:
        """Have a server split one of its tablets.

        Args:
            server: id of the server.
            table_id: id of the table.
            split_hash: hash with which the second piece begins.
        """
        await self.call(
            server, methods.RAM_SPLIT_OWNED, pb.SplitMasterTabletRequest,
            table_id=table_id, split_hash=split_hash,
        )  # fmt: skip

    async def set_all(self, server: ServerId, tablets: Iterable[HashRange]) -> None:
        """Have a server own these tablets, and no others."""
        sent = [owned_message(t) for t in tablets]
        await self.call(server, methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest, tablets=sent)

    async def ping(self, server: ServerId) -> pb.PingResponse | None:
        """Ask a server for its loads; None: it did not answer, or another one did."""
        found: pb.PingResponse | None = await self.call(server, methods.RAM_PING, pb.PingRequest)
        return found


class EnsembleClient:
    """Calls to the leader of the coordinator, which it finds by the key of the election (S3.65).

    Args:
        env: the environment.
        leader: returns the address of the leader, by the journal; empty: there is none.
        retry_ms: pause before a request is sent again.
    """

    def __init__(self, env: Env, leader: Callable[[], Awaitable[str]], retry_ms: int = 100) -> None:
        self._env = env
        self._leader = leader
        self._retry_ms = retry_ms

    async def call(self, method: Method, request: Any, timeout_ms: int) -> Any:
        """Send a request to the leader until it answers; requests may be executed twice.

        Args:
            method: of the coordinator.
            request: its message.
            timeout_ms: for all tries.

        Raises:
            NyalaError: the leader's answer, or that of the last try.
        """
        clock = self._env.clock
        end_us = clock.monotonic_us() + timeout_ms * 1000
        sent = False
        while True:
            left_ms = max(1, (end_us - clock.monotonic_us()) // 1000)
            try:
                address = await self._leader()
                if not address:
                    raise NotLeading("no coordinator leads; start one: nyala ram coordinator run")
                return await self._env.rpc.call(
                    address, method, request, timeout_ms=min(left_ms, 5_000)
                )
            except NotFound:
                if sent and method is methods.RAM_DROP_TABLE:  # an earlier try has dropped it
                    return pb.DropTableResponse()
                raise
            except NyalaError as err:
                if not _again(err) or clock.monotonic_us() >= end_us:
                    raise
                sent = True
            await self._env.tasks.sleep_ms(self._retry_ms)


def _again(err: NyalaError) -> bool:
    """Return True if a request may be sent again: each is executed once, or harmless twice."""
    return isinstance(err, Retryable | OutcomeUnknown | NotLeading)
