"""Operations of transactions on one member: proposals, and the order of resolves.

docs/internals/transactions.md has the rules by letter. The payloads are the state machine's. They belong to
no client: each is idempotent, and is proposed under a session of this member, with a sequence number of its
own for each entry. Used on the event loop only.
"""

from collections.abc import Callable, Mapping

from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.common.ids import PreparedTransaction
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.member.admission import RequestAdmission
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.pending_writes import WriteId, outcome
from nyala.replica.member.requests import MemberRequests
from nyala.replica.member.session_header import CLIENT_ID_BYTES
from nyala.replica.member.transactions.prepared import PreparedTransactions
from nyala.replica.member.transactions.waiting import WaitingRequests
from nyala.replica.status import WriteOutcome


class TransactionRequests:
    """The operations of transactions of one member.

    Args:
        context: the process.
        node: the member's Raft node.
        requests: proposes entries.
        admission: admits requests.
        leadership_watch: observer of the member's leadership; its waiters are woken at changes.
        known: what is prepared.
        turns: requests that wait for it.
        readable: called when reads may have become due, because a commit time is known.
    """

    def __init__(
        self,
        context: ReplicaContext,
        node: RaftNode,
        requests: MemberRequests,
        admission: RequestAdmission,
        leadership_watch: LeadershipWatch,
        known: PreparedTransactions,
        turns: WaitingRequests,
        readable: Callable[[], None],
    ) -> None:
        self._context = context
        self._node = node
        self._requests = requests
        self._admission = admission
        self._leadership_watch = leadership_watch
        self._known = known
        self._turns = turns
        self._readable = readable
        self._client_id = context.env.random.randbytes(CLIENT_ID_BYTES)
        self._sequence = 0
        self._payloads: dict[bytes, bytes] = {}  # of RESOLVEs, by transaction
        node.set_awake(bool(known.prepared))

    @property
    def prepared(self) -> Mapping[bytes, PreparedTransaction]:
        """Transactions that are prepared as of the last entry applied."""
        return self._known.prepared

    @property
    def readable(self) -> int:
        """Latest time at or below which no prepared transaction can become visible."""
        return self._known.readable

    @property
    def busy(self) -> bool:
        """True if no further transaction may be prepared until the requests that wait had their turn."""
        return self._turns.overdue

    def undecided(self) -> Mapping[bytes, PreparedTransaction]:
        """Return what is prepared, without those whose commit time this leader knows."""
        known = self._known
        return {t: p for t, p in known.prepared.items() if known.commit_time(t) is None}

    def commit_time(self, transaction: bytes) -> int | None:
        """Return the commit time that this leader was sent, of a prepared transaction; None: none."""
        return self._known.commit_time(transaction)

    async def accepting(self, timeout_ms: int) -> None:
        """Wait until this leader has applied its own NOOP. Raises as `RequestAdmission.accepting`."""
        await self._admission.accepting(self._deadline_us(timeout_ms))

    async def check(self, timeout_ms: int) -> None:
        """Check that this replica leads and could propose an entry now.

        Raises:
            NotLeader, Unavailable, Throttled: it could not; the message says why.
        """
        await self.accepting(timeout_ms)
        self._admission.check_capacity(0, 0)

    async def propose(
        self, payload: bytes, timeout_ms: int, *, prepares: bool = False, urgent: bool = False
    ) -> WriteOutcome:
        """Replicate an operation other than RESOLVE and STAGE; return its result once it is applied here.

        The same payload that is in flight already is not proposed again.

        Args:
            payload: for the state machine.
            timeout_ms: how long the caller waits.
            prepares: it is a PREPARE: ordinary writes wait behind it (W).
            urgent: it is an UNPREPARE, which frees memory and lets writes continue: it is proposed however
                much is in use.

        Raises:
            NotLeader, Throttled, Unavailable: nothing was proposed. OutcomeUnknown: it may take effect.
        """
        deadline_us = self._deadline_us(timeout_ms)
        await self._admission.accepting(deadline_us)
        identity = WriteId(payload, 0, 0)
        done = self._requests.join(identity, deadline_us)
        if done is None:
            if not urgent:
                self._admission.check_capacity(len(payload), 0)
            index = self._append(payload, 0)
            if prepares:
                self._known.prepare_proposed(index)
            done = self._requests.follow(index, len(payload), deadline_us, identity)
        answer = await done
        assert answer is not None, f"the operation of {len(payload)} bytes has no result"
        return outcome(answer)

    async def resolve(self, transaction: bytes, at: int, payload: bytes, timeout_ms: int) -> bool:
        """Take the commit time of a transaction; return once its RESOLVE is committed and applied here (K).

        The commit time stays known if the call fails, as long as this replica leads.

        Args:
            transaction: its id.
            at: commit time; the entry is stamped above it (C).
            payload: the RESOLVE.
            timeout_ms: how long the caller waits.

        Returns:
            False if it is not prepared here, as far as this leader has applied: nothing was done (A).

        Raises:
            NotLeader: leadership was lost, or another replica leads. Unavailable: the clock cannot pass the
                commit time yet, or the RESOLVE was refused. TimedOut: not within the time.
        """
        deadline_us = self._deadline_us(timeout_ms)
        await self._admission.accepting(deadline_us, at)
        known, term = self._known, self._node.term
        if transaction not in known.prepared:
            return False
        self._payloads[transaction] = payload
        known.decide(transaction, at)
        self._readable()
        self.resolve_some()
        while transaction in known.prepared:
            self._admission.check_leads(term)
            if known.commit_time(transaction) is None:
                raise Unavailable(
                    f"the tablet refused to apply transaction {transaction.hex()} at {at} and stays "
                    "prepared; the coordinator sends its decision again"
                )
            if self._context.env.clock.monotonic_us() >= deadline_us:
                raise TimedOut(
                    f"transaction {transaction.hex()} is not applied in time; its commit time is known here, "
                    "and it will be: ask again"
                )
            await self._leadership_watch.next_change()
        return True

    def resolve_some(self) -> None:
        """Propose the RESOLVEs whose turn it is (O); others are tried at the next tick."""
        known = self._known
        while self._leadership_watch.accepting and (due := known.next_resolve()) is not None:
            transaction, at = due
            try:
                known.resolve_proposed(transaction, self._append(self._payloads[transaction], at))
            except NyalaError:  # no stamp can be given, or leadership is being transferred
                return
            if not known.writes_wait:
                self._leadership_watch.wake()  # before another PREPARE

    def applied(self, index: int, prepared: Mapping[bytes, PreparedTransaction]) -> None:
        """Note that entries up to an index were applied; arguments as of `PreparedTransactions.applied`."""
        if not self._known.applied(index, prepared):
            return
        self._payloads = {t: p for t, p in self._payloads.items() if t in prepared}
        self._node.set_awake(bool(prepared))
        self.resolve_some()
        self._leadership_watch.wake()

    @property
    def pending(self) -> bool:
        """True if something waits to be proposed at a tick."""
        return bool(self._payloads)

    def tick(self) -> None:
        """Propose what could not be proposed before."""
        if self._payloads:
            self.resolve_some()

    def on_leadership_lost(self) -> None:
        """Forget what belongs to one term."""
        self._known.on_leadership_lost()
        self._payloads.clear()

    def _append(self, payload: bytes, above: int) -> int:
        """Append an operation; return its index."""
        self._sequence += 1
        now = self._context.clock.peek()
        number = self._sequence
        return self._requests.append(payload, self._client_id, number, number, now, above)

    def _deadline_us(self, timeout_ms: int) -> int:
        return self._context.env.clock.monotonic_us() + timeout_ms * 1000
