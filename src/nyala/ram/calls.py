"""ServerCalls: requests of the leader to the servers, with its epoch, below which they refuse requests."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from nyala.common.errors import (
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    StaleEpoch,
    Unavailable,
    may_have_arrived,
)
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.env.rpc import Method
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.state import CoordinatorState
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

log = logging.getLogger(__name__)

TRY_MS = 5_000
"""Longest time for one try of a request to the leader."""
READS = (methods.RAM_TABLET_MAP, methods.RAM_SERVER_LIST, methods.RAM_WILLS, methods.RAM_DUMP)
"""Requests to the leader that change nothing."""
CHANGES = (methods.RAM_CREATE_TABLE, methods.RAM_DROP_TABLE, methods.RAM_SPLIT_TABLET)
"""Requests of clients that take effect once each, by their operation ids."""


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
        ensemble: id of the ensemble.
        state: for the addresses.
        timeout_ms: of each call.

    Attributes:
        epoch: of the leader.
        confirm: has the journal confirm that this process leads; raises NotLeading if it does not.
    """

    def __init__(self, env: Env, ensemble: str, state: CoordinatorState, timeout_ms: int) -> None:
        self._env = env
        self._ensemble = ensemble
        self._state = state
        self._timeout_ms = timeout_ms
        self.epoch = 0
        self.confirm: Callable[[], Awaitable[object]] = _nobody_leads

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
            NotLeading: a server knows a later leader, and the journal does not say that this one leads.
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
            await self._check(server, err)
            return None
        except NyalaError as err:
            log.debug("server %s does not answer: %s", server, err)
            return None

    async def _check(self, server: ServerId, refusal: StaleEpoch) -> None:
        """Decide by the journal whether there is a later leader; if not, the server's epoch is nobody's."""
        try:
            await self.confirm()
        except NotLeading as err:
            raise NotLeading(f"server {server} knows a later leader: {refusal.message}") from err
        except NyalaError as err:  # the election decides; until then nobody steps down
            log.info(
                "the journal does not say whether server %s knows a later leader: %s", server, err
            )
            return
        log.warning(
            "server %s has an epoch that the journal does not know, and is taken for silent: %s",
            server, refusal.message,
        )  # fmt: skip

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


async def _nobody_leads() -> None:
    raise NotLeading("this coordinator has not been elected")


class EnsembleClient:
    """Calls to the leader of the coordinator, which it finds by the key of the election (S3.65).

    Args:
        env: the environment.
        leader: returns the address of the leader, by the journal; empty: there is none.
        retry_ms: pause before a request is sent again.
        unnamed_ms: time after which a call ends if the journal names no leader; None: that of the call.
    """

    def __init__(
        self,
        env: Env,
        leader: Callable[[], Awaitable[str]],
        retry_ms: int = 100,
        unnamed_ms: int | None = None,
    ) -> None:
        self._env = env
        self._leader = leader
        self._retry_ms = retry_ms
        self._unnamed_ms = unnamed_ms
        self._client = random_id(env.random)
        self._sequence = 0

    async def call(self, method: Method, request: Any, timeout_ms: int) -> Any:
        """Send a request to the leader until it answers.

        A request that changes tables takes effect once, by its operation id.

        Args:
            method: of the coordinator.
            request: its message; without an operation id it gets one.
            timeout_ms: for all tries.

        Raises:
            Unavailable: no coordinator has answered as the leader, and the request has no effect.
            OutcomeUnknown: as before, and it may have been executed.
            NyalaError: the leader's answer, or the journal's.
        """
        clock = self._env.clock
        end_us = clock.monotonic_us() + timeout_ms * 1000
        if method in CHANGES and not request.operation.client:
            numbered, request = request, type(request)()
            request.CopyFrom(numbered)
            self._sequence += 1
            request.operation.client, request.operation.sequence = self._client, self._sequence
        asked: dict[str, str] = {}
        arrived = False
        named_us = clock.monotonic_us()
        while True:
            left_ms = max(1, (end_us - clock.monotonic_us()) // 1000)
            address = ""
            try:
                address = await self._leader()
                if address:
                    try_ms = min(left_ms, TRY_MS, max(1_000, timeout_ms // 3))  # for three or more
                    return await self._env.rpc.call(address, method, request, timeout_ms=try_ms)
                last: NyalaError = NotLeading("the journal names no leader")
            except NyalaError as err:
                if not _again(err):
                    raise
                last = err
            if address:
                named_us = clock.monotonic_us()
                asked[address] = _shortly(last)
                arrived = arrived or may_have_arrived(last)
            left_us = end_us - clock.monotonic_us()
            if self._unnamed_ms is not None and not asked:
                left_us = min(left_us, named_us + self._unnamed_ms * 1000 - clock.monotonic_us())
            if left_us < 2 * self._retry_ms * 1000:  # too little for another try
                nobody = isinstance(last, NotLeading) or (address and not last.answered)
                unknown = arrived and method not in READS
                time_ms = timeout_ms if asked else min(timeout_ms, self._unnamed_ms or timeout_ms)
                raise _nobody(asked, time_ms, unknown) if nobody else last from None
            await self._env.tasks.sleep_ms(self._retry_ms)


def _again(err: NyalaError) -> bool:
    """Return True if a request may be sent again: each is executed once, or harmless twice."""
    return isinstance(err, Retryable | OutcomeUnknown | NotLeading)


def _shortly(err: NyalaError) -> str:
    """Return why a coordinator has not answered as the leader, in few words."""
    if isinstance(err, NotLeading):
        return "does not lead"
    return "cannot be reached" if err.details.get("sent") == "no" else "does not answer in time"


def _nobody(asked: Mapping[str, str], time_ms: int, unknown: bool) -> NyalaError:
    """Return the error of a call that no leader has answered.

    Args:
        asked: addresses of coordinators that the journal has named as leaders, and why each gave no answer.
        time_ms: time for it.
        unknown: the request may have been executed.
    """
    who = ", ".join(f"{address} {why}" for address, why in asked.items())
    text = (
        f"no coordinator leads: within {time_ms / 1000:g} s none has answered as the leader "
        f"({who or 'the journal has named none'}); nyala ram status shows which run, nyala ram up starts the "
        "others, and then one leads within seconds"
    )
    if not unknown:
        return Unavailable(text)
    return OutcomeUnknown(f"{text}; the request may have been executed: nyala ram tables shows it")
