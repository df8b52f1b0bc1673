"""Questions to the leader master about transactions that are prepared here and whose outcome is not known.

A leader asks until it knows: the coordinator that prepared may have ended, and its orders may be lost. The
answers are orders: RESOLVE applies, UNPREPARE undoes. The tablets of one server share a request.
"""

import logging
from collections.abc import Callable
from functools import partial

from nyala.common.errors import NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import Env
from nyala.replica.replica import Replica
from nyala.tablet.files.transaction_ops import ResolveOp, UnprepareOp, encode
from nyala.tserver.tablets import Tablets
from nyala.tserver.transactions.service import attempt_of
from nyala.wire import methods
from nyala.wire.proto import transactions_pb2 as tb

log = logging.getLogger(__name__)

ASK_INTERVAL_MS = 250
CALL_TIMEOUT_MS = 2_000
ACT_TIMEOUT_MS = 10_000
MAX_ASKED = 10_000
"""Maximum number of transactions of one request; the others are asked about later."""


class UndecidedTransactions:
    """Asks about the prepared transactions of the tablets led from this server. On the event loop only.

    Args:
        env: calls, tasks.
        tablets: tablets of this server.
        uuid: of this server.
        leader: returns the address of the leader master; None: not known at present.
    """

    def __init__(
        self, env: Env, tablets: Tablets, uuid: ServerUuid, leader: Callable[[], str | None]
    ) -> None:
        self._env = env
        self._tablets = tablets
        self._uuid = uuid
        self._leader = leader
        self._acting: set[tuple[TabletId, bytes]] = set()

    def start(self) -> None:
        """Start asking."""
        self._env.tasks.spawn(self._run(), "undecided transactions")

    async def _run(self) -> None:
        while True:
            await self._env.tasks.sleep_ms(ASK_INTERVAL_MS)
            try:
                await self.ask()
            except NyalaError as err:  # no master answers: asked again
                log.debug("the masters were not asked about transactions: %s", err)
            except Exception as bug:  # the task must not end: prepared tablets would wait for ever
                log.error("the masters were not asked about transactions", exc_info=bug)

    async def ask(self) -> None:
        """Ask once, about all of them, and carry out the answers."""
        asked, address = self._undecided()[:MAX_ASKED], self._leader()
        if not asked or address is None:
            return
        request = tb.TxnStatusRequest(server_uuid=self._uuid)
        for replica, transaction, (incarnation, term, number) in asked:
            attempt = tb.TxnAttempt(incarnation=incarnation, term=term, number=number)
            request.prepared.add(transaction=transaction, tablet_id=replica.group, attempt=attempt)
        response = await self._env.rpc.call(
            address, methods.TXN_STATUS, request, timeout_ms=CALL_TIMEOUT_MS
        )
        for (replica, transaction, _), answer in zip(asked, response.answers, strict=False):
            key = replica.group, transaction
            if answer.kind in (tb.TxnStatusAnswer.RESOLVE, tb.TxnStatusAnswer.UNPREPARE):
                self._acting.add(key)
                work = self._act(replica, transaction, answer)
                task = self._env.tasks.spawn(work, "outcome of a transaction")
                task.add_done_callback(partial(self._acted, key))

    def _acted(self, key: tuple[TabletId, bytes], _task: object) -> None:
        self._acting.discard(key)

    def _undecided(self) -> list[tuple[Replica, bytes, tuple[int, int, int]]]:
        """Return what is prepared here and led from here, and neither decided nor being carried out."""
        found = []
        for replica in self._tablets.host.active_replicas():  # a group with one does not quiesce
            member = replica.member
            if member is None or not member.transactions.prepared:
                continue
            if member.leadership_watch.accepting:
                found += [
                    (replica, transaction, prepared.attempt)
                    for transaction, prepared in member.transactions.undecided().items()
                    if (replica.group, transaction) not in self._acting
                ]
        return found

    async def _act(self, replica: Replica, transaction: bytes, answer: tb.TxnStatusAnswer) -> None:
        try:
            transactions = replica.transactions
            if answer.kind == tb.TxnStatusAnswer.RESOLVE:
                payload = encode(ResolveOp(transaction, answer.at))
                await transactions.resolve(transaction, answer.at, payload, ACT_TIMEOUT_MS)
                return
            known, bound = transactions.prepared.get(transaction), attempt_of(answer.bound)
            if known is not None and known.attempt <= bound:
                undo = encode(UnprepareOp(transaction, bound))
                await transactions.propose(undo, ACT_TIMEOUT_MS, urgent=True)
        except NyalaError as err:  # it is asked again as long as it is prepared
            log.info(
                "transaction %s in tablet %s is still prepared: %s",
                transaction.hex(), replica.group, err,
            )  # fmt: skip
