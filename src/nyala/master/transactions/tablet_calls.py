"""Requests of the coordinator to the leaders of tablets: one a server for all its tablets, until answered.

They are idempotent. An answer that names no outcome says nothing about the effect, so the request is sent
again, to the leader that it names or to the next member.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from nyala.common.errors import NyalaError, Unavailable
from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.env.rpc import Method
from nyala.master.transactions.locations import LeaderLocations
from nyala.tablet.files.transaction_ops import BUSY, TransactionOutcome
from nyala.wire import status
from nyala.wire.backoff import Backoff
from nyala.wire.proto import transactions_pb2 as txn

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 20, 500
TRY_MS = 2_000
"""Longest wait for one answer, in milliseconds: a silent server must not delay the others' next try."""
MakeRequest = Callable[[Sequence[TabletId], int], Any]
"""Makes a request for some tablets, with a timeout in milliseconds."""
Results = dict[TabletId, txn.TxnTabletResult]
"""Result of each tablet that has one; with `error`: the last failure."""


def ignore_none(_result: txn.TxnTabletResult) -> bool:
    """Return False: no result ends a call early."""
    return False


class TabletCalls:
    """Sender of the requests of one coordinator in one term. On the loop only.

    Args:
        env: calls, clock, random source.
        locations: where the leaders are.
    """

    def __init__(self, env: Env, locations: LeaderLocations) -> None:
        self._env = env
        self._locations = locations
        self._stopped = False

    def one_request(self, tablets: Collection[TabletId]) -> bool:
        """Return whether a request about tablets goes to one server, which has answered as their leader."""
        return self._locations.one_leads(tablets)

    def by_server(self, tablets: Collection[TabletId]) -> dict[str, list[TabletId]]:
        """Return tablets by the address to which a request goes next; empty: no server is known."""
        groups: dict[str, list[TabletId]] = {}
        for tablet in tablets:
            groups.setdefault(self._locations.address(tablet) or "", []).append(tablet)
        return groups

    def stop(self) -> None:
        """End: requests are sent no more than once."""
        self._stopped = True

    async def ask(
        self,
        method: Method,
        make: MakeRequest,
        tablets: Collection[TabletId],
        *,
        timeout_ms: int,
        enough: Callable[[txn.TxnTabletResult], bool] = ignore_none,
    ) -> Results:
        """Send a request until each tablet has a result, or until the time is over.

        Args:
            method: method of the tablet servers.
            make: makes the request of one server.
            tablets: to ask about.
            timeout_ms: deadline, from now.
            enough: whether a result makes further tries useless.
        """
        end_us = self._env.clock.monotonic_us() + timeout_ms * 1000
        backoff = Backoff(self._env.random, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        results: Results = {}
        left = list(dict.fromkeys(tablets))
        while True:
            left_ms = (end_us - self._env.clock.monotonic_us()) // 1000
            limit_ms = min(max(1, left_ms), TRY_MS)
            results |= await self.once(method, make, left, timeout_ms=limit_ms)
            left = [t for t in left if results[t].HasField("error")]
            if not left or any(enough(r) for r in results.values() if not r.HasField("error")):
                return results
            if self._stopped:
                return results
            pause_ms = backoff.next_ms()
            if end_us - self._env.clock.monotonic_us() <= pause_ms * 1000:
                return results
            await self._env.tasks.sleep_ms(pause_ms)

    async def once(
        self, method: Method, make: MakeRequest, tablets: Collection[TabletId], *, timeout_ms: int
    ) -> Results:
        """Send a request once, to the server that is known for each tablet.

        Args:
            method: method of the tablet servers.
            make: makes the request of one server.
            tablets: to ask about.
            timeout_ms: deadline, from now.
        """
        groups = self.by_server(tablets)
        results: Results = {}
        for tablet in groups.pop("", ()):
            unknown = Unavailable(f"no server of tablet {tablet} is known to this master")
            results[tablet] = _failure(tablet, unknown)

        async def one(address: str, some: list[TabletId]) -> Results:
            return await self._ask_server(method, make, address, some, timeout_ms)

        for found in await asyncio.gather(*(one(a, some) for a, some in groups.items())):
            results |= found
        return results

    async def _ask_server(
        self,
        method: Method,
        make: MakeRequest,
        address: str,
        tablets: list[TabletId],
        timeout_ms: int,
    ) -> Results:
        request = make(tablets, timeout_ms)
        try:
            answer = await self._env.rpc.call(address, method, request, timeout_ms=timeout_ms)
        except NyalaError as err:
            for tablet in tablets:
                self._locations.failed(tablet, address, err)
            return {t: _failure(t, err) for t in tablets}
        found: Results = {TabletId(r.tablet_id): r for r in answer.results}
        for tablet in tablets:
            if tablet not in found:
                found[tablet] = _failure(tablet, Unavailable(f"{address} has no result for it"))
            if found[tablet].HasField("error"):
                self._locations.failed(tablet, address, status.from_proto(found[tablet].error))
            else:
                self._locations.leads(tablet, address)
        return found


def is_outcome(result: txn.TxnTabletResult, outcome: TransactionOutcome) -> bool:
    """Return whether a tablet answered with an outcome, and not with an error."""
    return not result.HasField("error") and result.outcome == outcome


def is_busy(outcome: txn.TxnOutcome) -> bool:
    """Return whether a tablet refused an attempt only because other requests have their turn first."""
    return any(e.code == BUSY for result in outcome.errors for e in result.errors)


def _failure(tablet: TabletId, error: NyalaError) -> txn.TxnTabletResult:
    return txn.TxnTabletResult(tablet_id=tablet, error=status.to_proto(error))
