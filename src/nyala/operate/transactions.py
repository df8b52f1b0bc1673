"""Transactions of a cluster for operators: those that are staged, prepared or decided, and the end of one.

The masters know those that are being prepared and the decisions; the leaders of tablets know what is staged.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from nyala.client.core import ClientCore
from nyala.client.transactions import outcome as outcomes
from nyala.common.errors import AlreadyPresent, NotFound, NyalaError, TimedOut, Unavailable
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as txn

SERVER_MS = 3_000
"""Timeout of a question to one tablet server, in milliseconds."""


@dataclass(slots=True)
class TransactionView:
    """A transaction, as masters and tablets show it.

    Attributes:
        id: in hexadecimal digits.
        state: "staged", "preparing", "committed" (some tablet has no resolve yet), or "resolved".
        at: commit time; 0: not committed.
        key: its key as text; empty: none, or not known.
        age_ms: since it was last kept alive, since its attempt began, or since its commit time.
        tablets: its tablets.
        unresolved: those without a resolve, of one that is committed.
        lost: those that lost its rows by an unsafe recovery, as far as the leader master has seen.
        stages: what is staged, by tablet.
    """

    id: str
    state: str
    at: int = 0
    key: str = ""
    age_ms: int = 0
    tablets: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    stages: dict[str, txn.TxnStage] = field(default_factory=dict)

    def add(self, stage: txn.TxnStage) -> None:
        """Add what a tablet has staged."""
        self.stages[stage.tablet_id] = stage
        if stage.tablet_id not in self.tablets:
            self.tablets.append(stage.tablet_id)


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """All transactions, and the tablet servers that did not answer."""

    transactions: list[TransactionView]
    silent: list[str]


async def listing(core: ClientCore) -> TransactionListing:
    """Return the transactions of a cluster, decided ones by commit time, then the others.

    Raises:
        TimedOut: no master led in time.
    """
    answer: txn.TxnListResponse = await core.masters.call(
        methods.TXN_LIST, txn.TxnListRequest(), timeout_ms=core.options.timeout_ms
    )
    found = {t.transaction: _view(t) for t in answer.transactions}
    servers = await core.servers()
    addresses = [s.address for s in servers.servers if s.role == "tserver" and s.alive]
    asked = await asyncio.gather(*(_stages(core, a) for a in addresses))
    now = from_micros(core.env.clock.wall_us())
    for stage in (s for stages in asked if stages is not None for s in stages):
        made = found.setdefault(
            stage.transaction, TransactionView(stage.transaction.hex(), "staged")
        )
        if made.state == "staged":
            age_ms = max(0, to_micros(now) - to_micros(stage.kept)) // 1000
            made.age_ms = min(made.age_ms, age_ms) if made.stages else age_ms
        made.add(stage)
    order = sorted(found.values(), key=lambda t: (not t.at, t.at, t.id))
    return TransactionListing(
        order, [a for a, s in zip(addresses, asked, strict=True) if s is None]
    )


async def find(core: ClientCore, named: str) -> TransactionView:
    """Return the one transaction whose id begins with some digits.

    Raises:
        NotFound: none, or more than one.
    """
    found = await listing(core)
    meant = [t for t in found.transactions if named and t.id.startswith(named.lower())]
    if len(meant) == 1:
        return meant[0]
    silent = f"; {', '.join(found.silent)} did not answer" if found.silent else ""
    raise NotFound(
        f"{len(meant) or 'no'} transactions match {named!r}{silent}; one that has ended is listed for "
        "client_result_ttl_s after its commit; see: nyala txn list"
    )


async def abort(core: ClientCore, view: TransactionView) -> int:
    """End a transaction without effect; on return it can never be committed.

    Returns:
        A time at or before which it may have been committed, because decisions up to this time have been
        removed; 0: it was not committed.

    Raises:
        AlreadyPresent: it is committed.
        TimedOut: the masters or its tablets did not answer in time; it may still be committed.
        Unavailable: the leader master did not end it: it runs an earlier version.
    """
    if view.at:
        raise _too_late(view.id, view.at)
    request = txn.TxnAbortRequest(
        transaction=bytes.fromhex(view.id),
        participants=[txn.TxnParticipant(tablet_id=t) for t in view.tablets],
        timeout_ms=core.options.timeout_ms // 2,
    )
    answer: txn.TxnOutcome = await core.masters.change(
        methods.TXN_ABORT, request, timeout_ms=core.options.timeout_ms
    )
    if answer.kind == txn.TxnOutcome.COMMITTED:
        raise _too_late(view.id, answer.at)
    if answer.kind == txn.TxnOutcome.UNKNOWN:
        if not answer.at:
            raise Unavailable(
                f"transaction {view.id} was not ended by this command, and may be committed, already or "
                "later: the leader master runs an earlier version of nyala, or has removed the decision "
                "just now. Start all masters with this version, then run the command again"
            )
        return answer.at
    if answer.kind != txn.TxnOutcome.DENIED:
        text = outcomes.pending(request.transaction, answer, None)
        raise TimedOut(f"{text.replace('commit', 'end', 1)}; run the command again")
    return 0


async def key(core: ClientCore, name: str) -> txn.TxnKeyResponse:
    """Return the last commit under a key, with its owner.

    Args:
        core: a client.
        name: id of a job, or name of a stream.

    Raises:
        NotFound: there is none.
        Forbidden: another user owns it.
        TimedOut: no master led in time.
    """
    request = txn.TxnKeyRequest(name=name)
    found: txn.TxnKeyResponse = await core.masters.call(
        methods.TXN_KEY, request, timeout_ms=core.options.timeout_ms
    )
    if not found.found:
        raise NotFound(
            f"no committed transaction has the key {name!r}; keys of jobs are kept for job_ledger_days"
        )
    return found


async def set_key_owner(core: ClientCore, name: str, owner: str) -> None:
    """Set the user who may use a key.

    Args:
        core: a client of an administrator.
        name: id of a job, or name of a stream.
        owner: the user; empty: nobody, and every user may use it.

    Raises:
        NotFound: no committed transaction has the key.
        InvalidArgument: the owner cannot be the name of a user.
        TimedOut: no master led in time.
    """
    request = txn.TxnKeyOwnerRequest(name=name, owner=owner)
    await core.masters.change(
        methods.TXN_SET_KEY_OWNER, request, timeout_ms=core.options.timeout_ms
    )


def _view(listed: txn.TxnListed) -> TransactionView:
    return TransactionView(
        listed.transaction.hex(),
        listed.state,
        listed.at,
        _key(listed.key) if listed.HasField("key") else "",
        listed.age_ms,
        list(listed.tablet_ids),
        list(listed.unresolved),
        list(listed.lost),
    )


def _key(key: txn.TxnKey) -> str:
    return f"{key.name} {key.query} {key.epoch}" if key.query else key.name


async def _stages(core: ClientCore, address: str) -> Sequence[txn.TxnStage] | None:
    """Return the stages of the tablets that a server leads; None: it does not answer."""
    try:
        answer: txn.TxnStagesResponse = await core.env.rpc.call(
            address, methods.TXN_STAGES, txn.TxnStagesRequest(), timeout_ms=SERVER_MS
        )
    except NyalaError:
        return None
    return list(answer.stages)


def _too_late(transaction: str, at: int) -> AlreadyPresent:
    return AlreadyPresent(
        f"transaction {transaction} is committed at {at}, so it cannot be aborted; write the rows again to "
        "change them"
    )
