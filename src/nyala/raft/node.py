"""One member of one Raft group as a deterministic state machine: inputs in, `Ready` out.

The host calls inputs, then `ready()`, and executes what that returns (rules in `ready.py`). One caller at a
time. `hlc` is the host's hybrid clock *after* it has merged the incoming message's time, and never below a
time that was passed in before (`read_index`, `publish_closed`); it may decrease otherwise, when a wrong clock
is corrected. The core never reads a clock. Differences to the dissertation: docs/internals/raft.md.
"""

from collections.abc import Callable, Container, Sequence

from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import dispatch
from nyala.raft.log_view import LogView
from nyala.raft.membership import Configuration, History
from nyala.raft.messages import AnyMessage, AppendEntries, DurablePoint, Entry, HardState, Suffix
from nyala.raft.options import RaftOptions
from nyala.raft.ready import Outgoing, Ready
from nyala.raft.reconfiguration import unsafe_recovery
from nyala.raft.reconfiguration.changes import Change, change, most_up_to_date
from nyala.raft.roles import election, follower, leader, quiescence, reads, witness
from nyala.raft.state import RaftCore, recover
from nyala.raft.status import Role, Status
from nyala.raft.view import NodeView


class RaftNode:
    """One member of a group.

    Args:
        uuid: this server.
        config: the last committed configuration (from consensus metadata); configurations that the
            log has after `config.id.index` are adopted, committed or not.
        hard_state: recovered term and vote.
        log: recovered entries after `base`, or after the last one in `skipped`, in index order.
        base: op id of the entry before the first one of the log (NO_OP: nothing was collected).
        base_stamp: timestamp of the entry before the first one of `log`.
        skipped: see `LogView`; all of them are applied.
        configs: CONFIG entries among them that `config` may lack.
        commit_index: index known to be committed, at least `applied_index`.
        applied_index: last index in the state machine's files; `Ready.apply` begins after it.
        options: timing and limits.
        random: n -> a number in 0..n-1.

    Attributes:
        core: the state; for tests and the modules of this package.
        view: further properties, for the host.

    Raises:
        LogGap: `log` does not continue `base`, its terms or timestamps decrease, or it ends below the index
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
        """Uuid of this server."""
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
        """True if this node leads its group in its term; it may not accept reads yet."""
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
        """Leader of the current term; None: unknown."""
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
        """Timestamp of the last entry; the host's next one must be greater."""
        return self.core.log.last_stamp

    @property
    def closed(self) -> int:
        """Closed time: at or below it all is applied here and no new entry is timestamped; 0: unknown."""
        return self.core.closed

    @property
    def quiesced(self) -> bool:
        """True if this node is quiesced."""
        return self.core.quiesced

    def status(self) -> Status:
        """Return the full status; costs more than the properties."""
        return self.view.status()

    # ---- inputs ----------------------------------------------------------------------------------

    def step(self, message: AnyMessage, hlc: int) -> None:
        """Process a message from another member; it may be lost, late, duplicated or out of order.

        Raises:
            Corrupt: the message is inconsistent or violates the protocol; nothing was changed.
        """
        if message.to != self.core.uuid:
            return  # sent to a server that had this address before
        if message.sender in self.core.configs.active.lost:
            return  # removed by an unsafe recovery
        if isinstance(message, AppendEntries):
            follower.check(message)
        elif isinstance(message, Suffix):
            witness.check(message)
        self.core.hlc = hlc
        if self.core.quiesced and quiescence.wakes(self.core, message):
            quiescence.wake(self.core)
        if message.term > self.core.term:
            dispatch.enter_term(self.core, message)
        dispatch.take(self.core, message)

    def tick(self, hlc: int, absent: Container[ServerUuid] = ()) -> None:
        """Process one tick (50 ms); a quiesced node does nothing.

        Args:
            hlc: the clock's reading.
            absent: servers that have been silent for long; a group quiesces without them.
        """
        if not self.core.quiesced:
            dispatch.tick(self.core, hlc, absent)

    def durable(self, point: DurablePoint) -> None:
        """Record that everything up to a Ready's `point` is durable."""
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
        """Answer a `ReadRequest`; no entries: the log no longer has them."""
        if peer == self.core.uuid:
            self.core.out.apply += self.core.log.load(entries)
        elif self.core.leadership is None:
            witness.entries_read(self.core, peer, entries)
        else:
            leader.entries_read(self.core, peer, entries)

    def applied(self, index: int) -> None:
        """Record that entries up to `index` are applied and may be evicted from memory."""
        self.core.log.note_applied(index)
        follower.advance_closed(self.core)

    def retain_from(self, index: int) -> None:
        """Retain entries from `index` on, here and, if this member leads, on all members; 0: no longer."""
        self.core.copy_retain_index = index

    def set_out_of_memory(self, out_of_memory: bool) -> None:
        """Set whether there is no memory for entries.

        A follower then discards entries, but answers heartbeats and votes. Each reply reports this to the
        leader, which sends no entries until a reply reports memory again.
        """
        self.core.out_of_memory = out_of_memory

    def set_awake(self, awake: bool) -> None:
        """Set whether the group must not quiesce while this member leads."""
        self.core.awake = awake

    def shrink(self, limit_bytes: int) -> None:
        """Evict applied entries until at most `limit_bytes` are in memory."""
        self.core.log.shrink(limit_bytes)

    def inherit(self, before: "RaftNode") -> None:
        """Copy state of an earlier node of this member that the log lacks: lost entries, known commits."""
        core, known = self.core, before.core
        core.lost_last = known.lost_last
        core.known_commit, core.known_term = known.known_commit, known.known_term

    def unsafe_change_config(self, keep: Sequence[ServerUuid], stamp: int, term: int = 0) -> OpId:
        """Continue without a majority that is lost for good: keep only these members, at once.

        Whatever its role, this member appends the configuration in a later term, and starts an election at
        the next tick if it is the only one kept. This is unsafe unless the other members are dead: entries
        that only they had are lost, and uncommitted entries here become committed.

        Args:
            keep: members of the committed configuration, this one among them.
            stamp: as for `propose`.
            term: term of the entry, unless this member's next term is higher.

        Returns:
            The op id of the configuration; of the active one if it is the same already.

        Raises:
            InvalidArgument: see `unsafe_recovery.surviving_config`; nothing was changed.
        """
        return unsafe_recovery.change_config(self.core, keep, stamp, term)

    def wake(self) -> None:
        """Wake this node if it is quiesced, because a server that it relies on may have failed."""
        quiescence.wake_on_failure(self.core)

    def peer_exited(self, server: ServerUuid) -> bool:
        """Start an election soon if `server`, whose process has exited, leads; return whether it does.

        A wrong call costs one election that the other members refuse, because they have contact with their
        leader.
        """
        return quiescence.peer_exited(self.core, server)

    # ---- inputs to a leader ----------------------------------------------------------------------

    def propose(self, payload: bytes, stamp: int) -> OpId | None:
        """Append an OPERATION, which the next `ready()` replicates.

        Returns:
            Its op id; None: this node does not lead, or is transferring leadership. The outcome is known when
            an entry of that index is applied: with the same term it took effect, with another it never will.
        """
        return leader.propose(self.core, payload, stamp)

    def read_index(self, hlc: int = 0) -> int | None:
        """Join the next read-index round (dissertation 6.4); reads of one `ready()` share a round.

        Args:
            hlc: hybrid time of the read; the round is confirmed by replies with hybrid times at or above it,
                so no later leader assigns a timestamp at or below it.

        Returns:
            The round, confirmed by `Ready.confirmed` with this or a later number; None: this node does not
            lead. A round whose leader steps down is never confirmed.
        """
        return reads.join(self.core, hlc)

    def transfer(self, to: ServerUuid | None = None) -> ServerUuid:
        """Transfer leadership (dissertation 3.10); the attempt ends after an election timeout.

        Args:
            to: the successor; None: the most up-to-date voter that replies.

        Returns:
            Uuid of the successor.

        Raises:
            NotLeader: this node does not lead.
            InvalidArgument: `to` is this node, not a voter, or not electable; or no other member may lead.
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

        Any number of non-voters and attributes may change, and at most one voter. The outcome is known when
        an entry of the returned index is applied, as for a proposal.

        Args:
            changes: at most one for each server.
            stamp: as for `propose`.
            expected: op id that the active configuration must have.

        Raises:
            NotLeader: this node does not lead, or is transferring leadership. A leader that is to be removed,
                or to become a non-voter or a witness, starts a transfer: details `reason` = STEPPING_DOWN and
                `leader`, its successor.
            Unavailable: an earlier change, or the first entry of the own term, is not committed yet.
            CasFailed: the active configuration is not the expected one.
            InvalidArgument: see `changes.edited`.
        """
        return change(self.core, changes, stamp, expected)

    def mark_for_copy(self, index: int) -> None:
        """Mark the peers that are furthest behind as needing a copy, if they lack entries before `index`.

        A peer that has not replied to this leader yet may be up to date: it is marked only after
        `quiescence.SILENT_TIMEOUTS` election timeouts without a reply.
        """
        leader.mark_for_copy(self.core, index)

    def publish_closed(self, stamp: int) -> None:
        """Promise followers that this leader assigns no timestamp at or below `stamp`.

        The host may call this only for a time that a confirmed read round covered, with every entry at or
        below it applied. Ignored if this node does not lead.
        """
        if self.core.leadership is not None:
            assert stamp < MAX_HYBRID_TIME, f"closed time {stamp}"
            self.core.closed = max(self.core.closed, stamp)
            self.core.hlc = max(self.core.hlc, stamp)  # later leaders assign higher timestamps

    # ---- output ----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Return the work for the host since the last call; `Ready.empty` if there is none."""
        return dispatch.collect(self.core)

    def take_messages(self) -> Sequence[Outgoing]:
        """Return only the messages of the next `ready()`, for a host that cannot write to its log now."""
        taken, self.core.out.send = self.core.out.send, []
        return taken
