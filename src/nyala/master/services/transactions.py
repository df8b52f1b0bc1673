"""Transactions of clients: commit, abort, list; and the statuses that prepared tablets ask for."""

from collections.abc import Iterable
from itertools import islice

from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.env.rpc import Handlers
from nyala.master.services.tables import MasterContext
from nyala.master.transactions import keys
from nyala.master.transactions.keys import KeyUser
from nyala.master.transactions.term import TransactionsOfTerm
from nyala.security.identity import CALLER
from nyala.security.principal import check_name
from nyala.tablet.files.transaction_ops import PartCount, PrepareOp, encode
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as txn

TRANSACTION_BYTES = 16
MAX_PARTICIPANTS = 1_500
"""Maximum tablets of a transaction: their ids have to fit into one row of the catalog."""
MAX_LISTED = 10_000
MAX_TIMEOUT_MS = 60_000


class TransactionsService:
    """Handlers of `TransactionService`. On the loop only.

    Args:
        context: context of this master.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.TXN_READY: self.ready,
            methods.TXN_COMMIT: self.commit,
            methods.TXN_ABORT: self.abort,
            methods.TXN_STATUS: self.status,
            methods.TXN_LIST: self.list,
            methods.TXN_KEY: self.key,
            methods.TXN_SET_KEY_OWNER: self.set_key_owner,
        }

    async def ready(self, request: txn.TxnReadyRequest) -> txn.TxnReadyResponse:
        """Return the time-out of stages, if every live server has transactions.

        Raises:
            Forbidden: some server has none; the message names it.
            NotLeader, Unavailable: ask the leader master again.
        """
        self._term().check_ready()
        return txn.TxnReadyResponse(timeout_s=self._context.options.txn_timeout_s)

    async def commit(self, request: txn.TxnCommitRequest) -> txn.TxnOutcome:
        """Commit a transaction, or return what became of it; NONE: ask again.

        Raises:
            InvalidArgument: the request is malformed.
            Forbidden: some server has no transactions.
            NotLeader, Unavailable, TimedOut: ask the leader master again.
        """
        _check(request.transaction, request.participants)
        if request.HasField("key"):
            keys.check(request.key)
        request.timeout_ms = min(request.timeout_ms, MAX_TIMEOUT_MS)
        return await self._term().coordinator.commit(request, _user())

    async def abort(self, request: txn.TxnAbortRequest) -> txn.TxnOutcome:
        """End a transaction; COMMITTED: it was too late. Raises as `commit`.

        One that cannot be committed as it was asked for can be aborted: its client does so, and then knows.
        """
        _check_names(request.transaction, request.participants)
        request.timeout_ms = min(request.timeout_ms, MAX_TIMEOUT_MS)
        return await self._term().coordinator.abort(request)

    async def status(self, request: txn.TxnStatusRequest) -> txn.TxnStatusResponse:
        """Return what tablets are to do that are prepared for transactions.

        Raises:
            NotLeader, Unavailable: ask the leader master again.
        """
        coordinator = self._term().coordinator
        return txn.TxnStatusResponse(answers=[coordinator.status(p) for p in request.prepared])

    async def list(self, request: txn.TxnListRequest) -> txn.TxnListResponse:
        """Return the transactions that are being prepared, and those whose decision is kept.

        Raises:
            NotLeader, Unavailable, TimedOut: ask the leader master again.
        """
        term = await self._context.confirmed()
        found, now_us = term.transactions, self._context.env.clock.monotonic_us()
        listed = [
            txn.TxnListed(
                transaction=t.transaction, state="preparing", tablet_ids=t.tablets, key=t.key,
                unresolved=t.tablets, age_ms=(now_us - t.began_us) // 1000,
            )
            for t in found.attempts.under_way.values() if not t.decided_at
        ]  # fmt: skip
        now = from_micros(self._context.env.clock.wall_us())
        rows = term.catalog.decisions.rows
        for row in islice(rows.values(), max(0, len(rows) - MAX_LISTED), None):
            done = found.resolver.is_resolved(row.transaction)
            listed.append(
                txn.TxnListed(
                    transaction=row.transaction,
                    state="resolved" if done else "committed",
                    at=row.at,
                    tablet_ids=row.tablet_ids,
                    key=row.key if row.HasField("key") else None,
                    unresolved=found.resolver.left(row.transaction),
                    lost=found.resolver.lost(row.transaction),
                    age_ms=max(0, to_micros(now) - to_micros(row.at)) // 1000,
                )
            )
        return txn.TxnListResponse(transactions=listed)

    async def key(self, request: txn.TxnKeyRequest) -> txn.TxnKeyResponse:
        """Return the last transaction that took a key.

        Raises:
            Forbidden: the key belongs to another user.
            NotLeader, Unavailable, TimedOut: ask the leader master again.
        """
        term = await self._context.confirmed()
        found = await term.transactions.denials.key(request.name)
        keys.require_use(request.name, found, _user())
        if found is None:
            return txn.TxnKeyResponse()
        return txn.TxnKeyResponse(
            found=True,
            key=found.key,
            transaction=found.transaction,
            at=found.at,
            owner=found.owner,
        )

    async def set_key_owner(self, request: txn.TxnKeyOwnerRequest) -> txn.TxnKeyOwnerResponse:
        """Set who may use the name of a key; durable on return. Idempotent.

        Raises:
            InvalidArgument: the owner cannot be the name of a user.
            NotFound: no transaction with this key is known.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        if request.owner:
            check_name(request.owner)
        term = await self._context.confirmed()
        await term.transactions.key_owners.set_owner(request.name, request.owner)
        return txn.TxnKeyOwnerResponse()

    def _term(self) -> TransactionsOfTerm:
        return self._context.require_leading().require().transactions


def _user() -> KeyUser:
    """Return the caller, as the rules of keys know callers."""
    caller = CALLER.get()
    return keys.user_of(None if caller is None else caller.principal)


def _check_names(transaction: bytes, participants: Iterable[txn.TxnParticipant]) -> None:
    """Check the id of a request, and that it names a tablet once.

    Raises:
        InvalidArgument: they are malformed.
    """
    if len(transaction) != TRANSACTION_BYTES:
        raise InvalidArgument(
            f"the id of a transaction has {len(transaction)} bytes; it has {TRANSACTION_BYTES}"
        )
    named = [p.tablet_id for p in participants]
    if len(set(named)) < len(named):
        raise InvalidArgument(
            "the transaction names a tablet twice; name each once, with all its parts"
        )


def _check(transaction: bytes, participants: Iterable[txn.TxnParticipant]) -> None:
    """Check the id and the participants of a request.

    Raises:
        InvalidArgument: they are malformed.
    """
    participants = tuple(participants)
    _check_names(transaction, participants)
    for one in participants:
        try:
            counts = tuple(PartCount(p.part, p.batches, p.crc) for p in one.parts)
            encode(PrepareOp(transaction, (0, 0, 0), counts, 0, 0))
        except InvalidArgument as err:
            raise InvalidArgument(
                f"tablet {one.tablet_id[:80]} cannot prepare the parts of the transaction: {err.message}"
            ) from err
    if len(participants) > MAX_PARTICIPANTS:
        raise InvalidArgument(
            f"the transaction has {len(participants)} tablets; at most {MAX_PARTICIPANTS} can commit "
            "together: use several transactions, or tables of fewer tablets"
        )
