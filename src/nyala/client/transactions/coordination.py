"""A transaction's conversation with the masters and its tablets: commit, abort, keep-alive, drop.

All requests are idempotent, and are sent again until the deadline, to whichever master leads.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from nyala.client.core import ClientCore
from nyala.client.deadline import Attempts
from nyala.client.transactions import outcome as outcomes
from nyala.client.transactions.keys import CommittedKey
from nyala.client.transactions.outcome import Committed
from nyala.client.write.staging import StagedPart, StagedTablet
from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NyalaError,
    OutcomeUnknown,
    Rejected,
    TimedOut,
)
from nyala.env.rpc import Method
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as txn

WAIT_MS = 4_000
"""Time for which the master waits before it answers that a commit is not decided, in milliseconds."""
LAST_SHARE = 5
"""Share of the deadline, as a divisor, that is left for an abort when a commit is not decided."""
READY_US = 10_000_000
"""Time for which the masters' answer that every server has transactions is used, in microseconds."""
TABLET_MS = 1_000
"""Timeout of a request to a tablet server, in milliseconds; it is sent again, or is not needed."""
REFUSE_S = 1_200
"""Time for which tablets refuse a transaction that its client has dropped, in seconds."""

_Kind = txn.TxnOutcome


class TransactionCalls:
    """Requests of one transaction. Runs on the client's loop.

    Args:
        core: the client.
        transaction: id of the transaction.
        key: that takes effect once; None: it has none.
    """

    def __init__(self, core: ClientCore, transaction: bytes, key: txn.TxnKey | None) -> None:
        self._core = core
        self._transaction = transaction
        self._key = key
        self._kept = 0  # latest stamp of a KEEP

    async def ready(self) -> int:
        """Return the time-out of stages in seconds, if every server of the cluster has transactions.

        Raises:
            Forbidden: some server has none.
            TimedOut: no master led in time.
        """
        session, now_us = self._core.session.staging, self._core.env.clock.monotonic_us
        if session.ready is not None and now_us() < session.ready[1]:
            return session.ready[0]
        try:
            answer: txn.TxnReadyResponse = await self._core.masters.call(
                methods.TXN_READY, txn.TxnReadyRequest(), timeout_ms=self._core.options.timeout_ms
            )
        except (NotFound, InvalidArgument) as err:  # a master without the method
            raise InvalidArgument(
                f"the leader master has no transactions ({err.message}); upgrade the masters, then retry"
            ) from err
        session.ready = answer.timeout_s, now_us() + READY_US
        return answer.timeout_s

    async def commit(self, parts: Sequence[StagedPart]) -> Committed:
        """Commit the parts named, in this order, and no others.

        Raises:
            TransactionDenied: it is not committed, and never will be.
            TimedOut: it is not committed: it was aborted, as it was not decided in time.
            OutcomeUnknown: it may be committed, or may yet be.
        """
        core = self._core
        request = txn.TxnCommitRequest(
            transaction=self._transaction, participants=participants_of(parts),
            key=self._key, since=self._since(parts), covered=_covered(parts),
        )  # fmt: skip
        whole_ms = core.options.timeout_ms
        attempts = Attempts(core.env, whole_ms - whole_ms // LAST_SHARE)
        answer, known = await self._ask(methods.TXN_COMMIT, request, attempts)
        if answer is not None and answer.kind != _Kind.NONE:
            return self._noted(answer)
        text = outcomes.pending(self._transaction, answer, known)
        last = Attempts(core.env, whole_ms // LAST_SHARE)
        ended, _ = await self._ask(methods.TXN_ABORT, self._abort_request(parts), last)
        if ended is not None and ended.kind == _Kind.COMMITTED:
            return self._noted(ended)
        if ended is not None and ended.kind == _Kind.DENIED:
            if isinstance(known, Rejected):
                raise known
            raise TimedOut(f"{text}, and was aborted: nothing of it takes effect; write it again")
        raise OutcomeUnknown(
            f"{text}; it may yet be committed: nyala txn list shows it, and a key lets it be committed again"
        )

    async def abort(self, parts: Sequence[StagedPart]) -> Committed | None:
        """End the transaction; return the commit if it was too late, None if nothing takes effect.

        Raises:
            OutcomeUnknown: no master answered in time; its stages end by their time.
        """
        attempts = Attempts(self._core.env, self._core.options.timeout_ms)
        answer, known = await self._ask(methods.TXN_ABORT, self._abort_request(parts), attempts)
        if answer is None or answer.kind in (_Kind.NONE, _Kind.UNKNOWN):
            text = outcomes.pending(self._transaction, answer, known)
            raise OutcomeUnknown(f"{text.replace('commit', 'end', 1)}; nyala txn list shows it")
        return None if answer.kind == _Kind.DENIED else self._noted(answer)

    def _abort_request(self, parts: Sequence[StagedPart]) -> txn.TxnAbortRequest:
        return txn.TxnAbortRequest(
            transaction=self._transaction,
            participants=participants_of(parts),
            since=self._since(parts),
        )

    def _since(self, parts: Sequence[StagedPart]) -> int:
        """Return the latest known stamp of an entry of the transaction from before its commit was asked for.

        Any commit time is above it. An early one would not do: the masters remember decisions for
        `client_result_ttl_s`, and do not know the outcome of what may be older.
        """
        known = max((p.since for p in parts), default=0)
        return max(known, self._kept) or max(1, self._core.clock.seen)

    def _noted(self, answer: txn.TxnOutcome) -> Committed:
        """Return a decided outcome; later reads of this client are at or above its time."""
        found = outcomes.committed(self._transaction, answer)
        self._core.clock.merge(found.at)
        return found

    async def _ask(
        self, method: Method, request: Any, attempts: Attempts
    ) -> tuple[txn.TxnOutcome | None, NyalaError | None]:
        """Ask the leader master until it knows an outcome; return the last answer, or the last error."""
        answer: txn.TxnOutcome | None = None
        while True:
            left_ms = max(1, attempts.left_ms())
            request.timeout_ms = min(WAIT_MS, left_ms * 4 // 5 + 1)
            try:
                answer = await self._core.masters.change(method, request, timeout_ms=left_ms)
            except NyalaError as err:
                if isinstance(err, Rejected):
                    return None, err
                if not await attempts.pause():
                    return None, err
                continue
            assert answer is not None
            if answer.kind != _Kind.NONE or not await attempts.pause():
                return answer, None

    async def keep(self, tablets: Iterable[StagedTablet]) -> list[str]:
        """Let the time of the stages begin anew; return the tablets that have none any more."""

        def make(some: list[str]) -> txn.TxnKeepRequest:
            return txn.TxnKeepRequest(transaction=self._transaction, tablet_ids=some)

        found = await self._tell(methods.TXN_KEEP, make, tablets)
        done = (r.time for r in found if r.outcome == _DONE)
        self._kept = max(self._kept, max(done, default=0))
        return [r.tablet_id for r in found if r.outcome in _GONE]

    async def drop(self, tablets: Iterable[StagedTablet]) -> None:
        """Free the stages now; those of servers that do not answer end by their time."""

        def make(some: list[str]) -> txn.TxnDropRequest:
            return txn.TxnDropRequest(
                transaction=self._transaction, tablet_ids=some, refuse_s=REFUSE_S
            )

        await self._tell(methods.TXN_DROP, make, tablets)

    async def _tell(
        self, method: Method, make: Any, tablets: Iterable[StagedTablet]
    ) -> list[txn.TxnTabletResult]:
        """Send a request to the leaders of tablets, and to the other members where none answers as leader."""
        found: list[txn.TxnTabletResult] = []
        left = {t.tablet_id: list(t.addresses) for t in tablets}
        while left:
            groups: dict[str, list[str]] = {}
            for tablet, addresses in list(left.items()):
                if addresses:
                    groups.setdefault(addresses.pop(0), []).append(tablet)
                else:
                    del left[tablet]
            calls = (self._call(a, method, make(some)) for a, some in groups.items())
            for results in await asyncio.gather(*calls):
                for result in results:
                    if not result.HasField("error"):
                        left.pop(result.tablet_id, None)
                        found.append(result)
        return found

    async def _call(
        self, address: str, method: Method, request: Any
    ) -> Sequence[txn.TxnTabletResult]:
        try:
            answer: txn.TxnTabletResponse = await self._core.env.rpc.call(
                address, method, request, timeout_ms=TABLET_MS
            )
        except NyalaError:
            return ()
        return list(answer.results)


async def find_key(core: ClientCore, name: str) -> CommittedKey | None:
    """Return the last commit under a key; None: there is none.

    Args:
        core: the client.
        name: id of a job, or name of a stream.

    Raises:
        Forbidden: it belongs to another user.
        TimedOut: no master led in time.
    """
    request, timeout_ms = txn.TxnKeyRequest(name=name), core.options.timeout_ms
    found: txn.TxnKeyResponse = await core.masters.call(
        methods.TXN_KEY, request, timeout_ms=timeout_ms
    )
    if not found.found:
        return None
    core.clock.merge(found.at)
    key = found.key
    transaction = found.transaction.hex()
    return CommittedKey(name, found.at, transaction, key.query, key.epoch, key.table)


_DONE = 1
"""`TransactionOutcome` of a tablet that has kept a stage."""
_GONE = (3, 4)
"""`TransactionOutcome` of a tablet that has no stage: GONE, UNKNOWN."""


def _covered(parts: Sequence[StagedPart]) -> list[txn.TxnCovered]:
    """Return the tables of which some part has a condition, once for each version of their ranges."""
    found = sorted({c for part in parts for c in part.covered})
    return [txn.TxnCovered(table_id=t, ranges_version=version) for t, version in found]


def participants_of(parts: Sequence[StagedPart]) -> list[txn.TxnParticipant]:
    """Return the tablets of some parts, each with its parts in their order."""
    found: dict[str, txn.TxnParticipant] = {}
    for part in parts:
        for tablet in part.tablets:
            made = found.setdefault(
                tablet.tablet_id,
                txn.TxnParticipant(tablet_id=tablet.tablet_id, table_id=tablet.table_id),
            )
            made.parts.add(part=part.name, batches=tablet.batches, crc=tablet.crc)
    return list(found.values())
