"""RaftNode: one member of one group, as a pure machine. Inputs go in, `Ready` comes out.

The host calls any of the inputs, then `ready()`, and owes what that returns (rules in `ready.py`). One
caller at a time, on one loop. `hlc` is the reading of the host's hybrid clock *after* it has merged
the incoming message's, and never below a time that was asked for here (`read_index`, `publish_closed`);
it may fall otherwise, when a clock that was wrong is set right. The core never reads a clock. Departures
from the dissertation: docs/internals/raft.md.
"""

from collections.abc import Callable, Container, Sequence

from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import (
    election,
    follower,
    leader,
    promotion,
    quiescence,
    reads,
    removed_peers,
    unsafe_recovery,
    witness,
)
from nyala.raft.changes import Change, change, most_up_to_date
from nyala.raft.log_view import LogView
from nyala.raft.membership import Configuration, History
from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    DurablePoint,
    Entry,
    FetchSuffix,
    HardState,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.raft.options import RaftOptions
from nyala.raft.ready import NOTHING, NOWHERE, ReadRequest, Ready
from nyala.raft.state import Output, RaftCore, recover
from nyala.raft.status import Role, Status
from nyala.raft.view import NodeView


class RaftNode:
    """One member of a group.

    Args:
        uuid: this server.
        config: the last committed configuration (from consensus metadata); configurations that the
            log holds after `config.id.index` are adopted, committed or not.
        hard_state: term and vote as recovered; durable.
        log: recovered entries after `base`, or after the last in `skipped`, in index order; durable.
        base: op id of the entry before the first of the log (NO_OP: the log is whole).
        base_stamp: stamp of the entry before the first of `log`.
        skipped: see `LogView`; all of them are applied.
        configs: the configurations among them, as far as they may not be in `config`.
        commit_index: what is known to be committed (at least what is in the files).
        applied_index: what the state machine's files hold; `Ready.apply` begins after it.
        options: pace and limits.
        random: n -> a number in 0..n-1.

    Attributes:
        core: the state; for tests and the modules of this package.
        view: further properties, for the host.

    Raises:
        LogGap: `log` does not continue `base`, its terms or stamps fall, or it ends below what is
            known to be committed.
        Corrupt: `log` is newer than `hard_state`.
    """

    def __init__(
        self,
        uuid: ServerUuid,
        config: Configuration,
        hard_state: HardState,
        log: Sequence[Entry] = (),
        *,
        base: OpId = NO_OP,
        base_stamp: int = 0,
        skipped: Sequence[OpId] = (),
        configs: Sequence[Entry] = (),
        commit_index: int = 0,
        applied_index: int = 0,
        options: RaftOptions | None = None,
        random: Callable[[int], int],
    ) -> None:
        options = options or RaftOptions()
        view = LogView(base, base_stamp, log, options.cache_bytes, skipped)
        self.core = RaftCore(uuid, options, random, view, History(config), hard_state)
        self.view = NodeView(self.core)
        recover(self.core, (*configs, *log), commit_index, applied_index)

    # ---- state -----------------------------------------------------------------------------------

    @property
    def uuid(self) -> ServerUuid:
        """This server."""
        return self.core.uuid

    @property
    def config(self) -> Configuration:
        """The active configuration, committed or not."""
        return self.core.configs.active

    @property
    def committed_config(self) -> Configuration:
        """The last committed configuration."""
        return self.core.configs.committed

    @property
    def is_leader(self) -> bool:
        """True if this node leads its group in its term (perhaps not yet accepting reads)."""
        return self.core.leadership is not None

    @property
    def role(self) -> Role:
        """Role of this node in its group."""
        return self.core.role

    @property
    def term(self) -> int:
        """Current term."""
        return self.core.hard.term

    @property
    def leader(self) -> ServerUuid | None:
        """Leader of the current term, when known."""
        return self.core.leader

    @property
    def commit_index(self) -> int:
        """Last index known to be committed."""
        return self.core.log.committed

    @property
    def last(self) -> OpId:
        """Op id of the last entry, durable or not."""
        return self.core.log.last

    @property
    def last_stamp(self) -> int:
        """Stamp of the last entry; the host's next stamp lies above it."""
        return self.core.log.last_stamp

    @property
    def closed(self) -> int:
        """Hybrid time at or below which all is applied here and nothing is stamped any more; 0: unknown."""
        return self.core.closed

    @property
    def quiesced(self) -> bool:
        """True if the group is quiesced as far as this node is concerned."""
        return self.core.quiesced

    def status(self) -> Status:
        """Return everything that is worth showing; costs more than the properties."""
        return self.view.status()

    # ---- inputs ----------------------------------------------------------------------------------

    def step(self, message: AnyMessage, hlc: int) -> None:
        """Take a message from another member; may be lost, late, doubled or out of order.

        Raises:
            Corrupt: the message contradicts itself or the protocol; nothing was changed.
        """
        if message.to != self.core.uuid:
            return  # sent to a server that had this address before
        if message.sender in self.core.configs.active.lost:
            return  # given up for good
        if isinstance(message, AppendEntries):
            follower.check(message)
        elif isinstance(message, Suffix):
            witness.check(message)
        self.core.hlc = hlc
        if self.core.quiesced and quiescence.wakes(self.core, message):
            quiescence.wake(self.core)
        if message.term > self.core.term:
            _enter_term(self.core, message)
        _take(self.core, message)

    def tick(self, hlc: int, absent: Container[ServerUuid] = ()) -> None:
        """Let one tick (50 ms) pass; nothing in a quiesced group.

        Args:
            hlc: the clock's reading.
            absent: servers that have been silent for long; a group goes to sleep without them.
        """
        if not self.core.quiesced:
            _tick(self.core, hlc, absent)

    def durable(self, point: DurablePoint) -> None:
        """Note that everything up to a Ready's `point` is on disk."""
        core = self.core
        core.durable_version = max(core.durable_version, point.hard_state_version)
        of_this_log = point.hard_state_version >= core.truncated_version
        if of_this_log and point.last.index > core.log.stable:
            core.log.note_durable(point.last)
            core.commit_configs()
        election.count_own_vote(core)
        if core.leadership is not None:
            leader.advance_commit(core, core.leadership)

    def entries_read(self, peer: ServerUuid, entries: Sequence[Entry]) -> None:
        """Answer a `ReadRequest`; no entries means that the log no longer holds them."""
        if peer == self.core.uuid:
            self.core.out.apply += self.core.log.load(entries)
        elif self.core.leadership is None:
            witness.entries_read(self.core, peer, entries)
        else:
            leader.entries_read(self.core, peer, entries)

    def applied(self, index: int) -> None:
        """Note that entries up to `index` are applied; their memory may go."""
        self.core.log.note_applied(index)
        follower.advance_closed(self.core)

    def retain_from(self, index: int) -> None:
        """Count entries from `index` on as needed, here and by a leader's word everywhere; 0: no more."""
        self.core.retained_from = index

    def set_full(self, full: bool) -> None:
        """Take no entries as a follower while there is no room for them; heartbeats and votes go on.

        The leader is told with each answer, and sends no entries until an answer says that there is room.
        """
        self.core.full = full

    def shrink(self, limit_bytes: int) -> None:
        """Free entries in memory that are applied, and so durable, down to so many bytes."""
        self.core.log.shrink(limit_bytes)

    def inherit(self, before: "RaftNode") -> None:
        """Copy what an earlier core of this member knew beside its log: entries it lost, known commits."""
        core, known = self.core, before.core
        core.lost_last = known.lost_last
        core.known_commit, core.known_term = known.known_commit, known.known_term

    def unsafe_change_config(self, keep: Sequence[ServerUuid], stamp: int, term: int = 0) -> OpId:
        """Go on without a majority that is lost for good: keep these members only, at once.

        Whatever role this member has, it appends the configuration in a later term and stands, if it is kept
        alone, at the next tick. Nothing is safe about it unless the others are dead: entries that only they
        had are lost, and entries here that were not committed will be.

        Args:
            keep: members of the committed configuration, this one among them.
            stamp: as for `propose`.
            term: of the entry, unless this member's next term is higher.

        Returns:
            The op id of the configuration; of the active one if it says this already.

        Raises:
            InvalidArgument: see `unsafe_recovery.surviving_config`; nothing was changed.
        """
        return unsafe_recovery.change_config(self.core, keep, stamp, term)

    def wake(self) -> None:
        """Wake this node, if it is quiesced: a server that it relies on may have failed."""
        quiescence.wake_suspecting(self.core)

    def peer_exited(self, server: ServerUuid) -> bool:
        """Start an election soon if `server`, whose process has exited, leads; return whether it does.

        A mistake costs an election that the others refuse, since they hear their leader.
        """
        return quiescence.peer_exited(self.core, server)

    # ---- inputs to a leader ----------------------------------------------------------------------

    def propose(self, payload: bytes, stamp: int) -> OpId | None:
        """Append an OPERATION, to be replicated by the next `ready()`.

        Returns:
            Its op id, or None when this node does not lead (or is handing leadership over). What became
            of it is known when an entry of that index is applied: the same term means it took effect,
            any other that it never will.
        """
        return leader.propose(self.core, payload, stamp)

    def read_index(self, hlc: int = 0) -> int | None:
        """Join the next read-index round (dissertation 6.4); reads of one `ready()` share a round.

        Args:
            hlc: the read's hybrid time; the round is confirmed by acknowledgements with HLCs at or
                above it, so that no later leader stamps at or below it.

        Returns:
            The round, answered by `Ready.confirmed` with this or a later round; None when not leader.
            A round whose leader steps down is never answered.
        """
        return reads.join(self.core, hlc)

    def transfer(self, to: ServerUuid | None = None) -> ServerUuid:
        """Hand leadership over (dissertation 3.10); given up after an election timeout.

        Args:
            to: who is to lead next; None: the most up-to-date voter that is heard from.

        Returns:
            Who is to lead next.

        Raises:
            NotLeader: this node does not lead.
            InvalidArgument: `to` is this node, not a voter, or not electable; or nobody else may lead.
        """
        core = self.core
        if to is None and core.leadership is not None:
            to = most_up_to_date(core, core.leadership)
        election.transfer(core, to or core.uuid)
        return to or core.uuid

    def change_config(
        self, changes: Sequence[Change], stamp: int, expected: OpId | None = None
    ) -> OpId:
        """Append one CONFIG entry with all of `changes`, active at once (dissertation 4.1).

        Any number of non-voters and attributes may change, and at most one voter with them. What became of
        it is known when an entry of the returned index is applied, as for a proposal.

        Args:
            changes: at most one for each server.
            stamp: as for `propose`.
            expected: op id that the active configuration must have.

        Raises:
            NotLeader: this node does not lead, or hands leadership over; to remove itself (or make itself
                a non-voter or a witness) a leader begins to do so, with details `reason` =
                STEPPING_DOWN and `leader`, its successor.
            Unavailable: an earlier change, or any entry of the own term, is not committed yet.
            CasFailed: the active configuration is not the expected one.
            InvalidArgument: see `changes.edited`.
        """
        return change(self.core, changes, stamp, expected)

    def mark_for_copy(self, index: int) -> None:
        """Take it that the peers furthest behind, if that is before `index`, need a copy.

        A peer that has not told this leader yet where its log agrees may be level: it is not among them
        before `quiescence.SILENT_TIMEOUTS` election timeouts have passed without its word.
        """
        leader.mark_for_copy(self.core, index)

    def publish_closed(self, stamp: int) -> None:
        """Promise followers that this leader stamps nothing at or below `stamp`.

        The host may do so only for a `stamp` that a confirmed read round covered, with every entry at
        or below it applied. Ignored when not leader.
        """
        if self.core.leadership is not None:
            assert stamp < MAX_HYBRID_TIME, f"closed time {stamp}"
            self.core.closed = max(self.core.closed, stamp)
            self.core.hlc = max(self.core.hlc, stamp)  # who hears of it stamps above it

    # ---- output ----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Drain what the host owes since the last call; `Ready.empty` when nothing."""
        return _collect(self.core)


def _enter_term(core: RaftCore, message: AnyMessage) -> None:
    """Follow in the higher term of a message, unless it only asks, or answers, what would be."""
    if isinstance(message, RequestVote | FetchSuffix | Suffix):
        return  # stickiness comes first: election.on_request; as for what is lent, witness.py
    if isinstance(message, VoteReply) and message.pre and message.granted:
        return  # `term` is the one that was asked about
    leads = isinstance(message, AppendEntries | TimeoutNow)
    core.become_follower(message.term, message.sender if leads else None)


def _take(core: RaftCore, message: AnyMessage) -> None:
    """Hand a message of our term, or of an older one, to whom it concerns."""
    if isinstance(message, RequestVote):
        election.on_request(core, message)
    elif isinstance(message, VoteReply):
        election.on_reply(core, message)
        witness.on_refusal(core, message)
    elif isinstance(message, FetchSuffix):
        witness.on_fetch(core, message)
    elif isinstance(message, Suffix):
        witness.on_suffix(core, message)
    elif message.term < core.term:
        if isinstance(message, AppendEntries):
            follower.reject_stale(core, message)
    elif isinstance(message, AppendEntries):
        follower.note_leader(core, message)
        follower.on_append(core, message)
    elif isinstance(message, AppendReply):
        if core.leadership is not None and not core.quiesced:
            leader.on_reply(core, core.leadership, message)
            removed_peers.on_reply(core, core.leadership, message)
            election.continue_transfer(core)
    else:
        election.on_timeout_now(core, message)


def _tick(core: RaftCore, hlc: int, absent: Container[ServerUuid]) -> None:
    """Let a tick pass for a node that is awake."""
    core.hlc = hlc
    core.ticks += 1
    if core.leadership is None:
        election.tick(core)
    else:
        leader.tick(core, core.leadership, absent)
        election.continue_transfer(core)
        if core.leadership is not None and core.leadership.removed:
            removed_peers.tick(core, core.leadership)
        if core.leadership is not None and core.configs.active.promoting:
            promotion.tick(core, core.leadership)


def _collect(core: RaftCore) -> Ready:
    """Drain what is owed, replication first, since it adds to the rest."""
    if core.dirty and core.leadership is not None:
        if core.quiesced:
            quiescence.wake(core)
        leader.replicate(core, core.leadership)
        removed_peers.send(core, core.leadership)
        reads.confirm(core, core.leadership)
    append = core.log.take_unwritten()
    persist = core.hard if core.version != core.version_out else None
    core.version_out = core.version
    out = core.out
    apply = (*out.apply, *core.log.take_applicable())
    if missing := core.log.take_missing():
        out.read.append(ReadRequest(core.uuid, missing, core.options.max_append_bytes))
    if not (append or persist or apply or out):
        return NOTHING
    core.out = Output()
    return Ready(
        persist=persist,
        append=append,
        point=DurablePoint(core.version, core.log.last) if append or persist else NOWHERE,
        send=tuple(out.send),
        read=tuple(out.read),
        apply=apply,
        confirmed=out.confirmed,
        config=out.config,
        config_committed=out.config_committed,
    )
