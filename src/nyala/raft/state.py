"""State of one member of a group and its transitions: hard state, log, role.

Nothing here sends messages on its own (`election.py`, `leader.py`, `follower.py` and `reads.py` do, which
share one `RaftCore`). The state changes only through `_become`, along TRANSITIONS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nyala.common.errors import Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import membership
from nyala.raft.log_view import LogView
from nyala.raft.membership import Configuration, History
from nyala.raft.messages import AnyMessage, DurablePoint, Entry, EntryKind, HardState
from nyala.raft.options import RaftOptions
from nyala.raft.progress import Leadership
from nyala.raft.ready import Outgoing, ReadConfirmed, ReadRequest
from nyala.raft.status import ROLE_TRANSITIONS, Role


class RaftState(Enum):
    """Raft state: follower, candidate or leader."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: frozenset[tuple[RaftState, RaftState]] = frozenset(
    {
        (RaftState.FOLLOWER, RaftState.FOLLOWER),  # a new term, or a leader is known
        (RaftState.FOLLOWER, RaftState.PRE_CANDIDATE),  # election timeout
        (RaftState.FOLLOWER, RaftState.CANDIDATE),  # TimeoutNow
        (RaftState.PRE_CANDIDATE, RaftState.PRE_CANDIDATE),  # election timeout again
        (RaftState.PRE_CANDIDATE, RaftState.CANDIDATE),  # won the pre-vote
        (
            RaftState.PRE_CANDIDATE,
            RaftState.FOLLOWER,
        ),  # a leader, a higher term, or lost the pre-vote
        (RaftState.CANDIDATE, RaftState.LEADER),  # won the election
        (
            RaftState.CANDIDATE,
            RaftState.PRE_CANDIDATE,
        ),  # election timeout: pre-vote before the next term
        (RaftState.CANDIDATE, RaftState.FOLLOWER),  # a leader, a higher term, or lost the election
        (RaftState.LEADER, RaftState.FOLLOWER),  # a higher term, or no replies of a majority
    }
)


@dataclass(slots=True)
class Output:
    """Work that the next `ready()` returns, beside log and hard state; fields as in `Ready`."""

    send: list[Outgoing] = field(default_factory=list)
    read: list[ReadRequest] = field(default_factory=list)
    apply: tuple[Entry, ...] = ()  # read from the log; those in memory follow
    confirmed: ReadConfirmed | None = None
    config: Configuration | None = None
    config_committed: Configuration | None = None

    def __bool__(self) -> bool:
        return bool(
            self.send
            or self.read
            or self.apply
            or self.confirmed
            or self.config
            or self.config_committed
        )


@dataclass(slots=True, eq=False)
class RaftCore:
    """State of one member and its transitions; `RaftNode` describes the first fields."""

    uuid: ServerUuid
    options: RaftOptions
    random: Callable[[int], int]
    log: LogView
    configs: History
    # hard state
    hard: HardState
    version: int = 0  # counts changes of the hard state and truncations
    version_out: int = 0  # last version given to the host
    durable_version: int = 0
    truncated_version: int = 0  # durable points of earlier versions do not cover the current log
    # role
    state: RaftState = RaftState.FOLLOWER
    role: Role = Role.NON_PARTICIPANT  # derived from `state` and the active configuration
    leader: ServerUuid | None = None
    leadership: Leadership | None = None  # exactly when LEADER
    votes: dict[ServerUuid, bool] = field(default_factory=dict)
    self_vote_version: int = 0  # a candidate's own vote counts once this is durable
    # time, in ticks
    ticks: int = 0
    elapsed: int = 0  # since the election timer was reset
    timeout: int = 0
    ticks_since_leader: int = 0  # since the last message of the leader
    promise_ticks: int = 0  # for which this member takes part in no election; see `reads.py`
    retries: int = (
        0  # pre-votes to be repeated soon, since the leader's process seems to have exited
    )
    # a follower's view of this term's leader
    verified: int = 0  # index up to which the log agrees with the leader's
    retain_index: int = 0  # lowest index that some member may still have to be sent; 0: unknown
    known_commit: int = 0  # highest commit index received from a leader
    known_term: int = 0  # that leader's term
    copy_retain_index: int = 0  # lowest index that a copy made from here needs; 0: none
    lost_last: OpId = NO_OP  # last entry that this log acknowledged and has lost since
    round_seen: int = 0
    round: int = 0  # highest read round begun here; never decreases, so late replies do not count
    hlc: int = 0
    closed: int = 0
    closed_pending: tuple[int, int] | None = None  # (stamp, index to be applied first)
    out: Output = field(default_factory=Output)
    dirty: bool = False  # a leader has something to replicate
    quiesced: bool = False  # see `quiescence.py`
    awake: bool = False  # the host has work that needs ticks: as leader it does not quiesce
    out_of_memory: bool = False  # no memory for entries: a follower discards them, and replies so
    suffix_candidate: ServerUuid | None = None  # see `witness.py`

    # ---- identity ------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Current term."""
        return self.hard.term

    @property
    def voters(self) -> Sequence[ServerUuid]:
        """Voters of the active configuration."""
        return self.configs.active.voters

    @property
    def may_campaign(self) -> bool:
        """True if this member may become leader: a voter, and not a witness."""
        return self.configs.active.may_lead(self.uuid)

    @property
    def incomplete(self) -> bool:
        """True if this log lacks entries that it acknowledged or that are known to be committed."""
        return not self.complete(self.log.last)

    def complete(self, last: OpId) -> bool:
        """Return whether a log that ends at `last` has all entries that are known here to be on a majority.

        A log with entries of a later term than that of the known commit index has what was committed before.
        """
        up_to_date = last.term > self.known_term or last.index >= self.known_commit
        return last >= self.lost_last and up_to_date

    @property
    def has_live_leader(self) -> bool:
        """True if a leader's message came within the minimum election timeout (dissertation 4.2.3)."""
        if self.state is RaftState.LEADER:
            return True
        return self.leader is not None and self.ticks_since_leader < self.options.election_ticks

    def reset_timer(self) -> None:
        """Restart the election timer with a new random timeout; a single voter does not wait.

        A new, eager group does not wait either: there has been no leader that it could disrupt.
        """
        self.elapsed = 0
        if self.voters == (self.uuid,):
            self.timeout = 1
            return
        least = self.options.election_ticks
        new = self.options.eager and self.hard.term == 0 and self.log.last == NO_OP
        self.timeout = (1 if new else least) + self.random(least)

    # ---- hard state ------------------------------------------------------------------------

    def set_hard_state(self, hard: HardState) -> None:
        """Change term or vote; messages that depend on it wait until it is durable."""
        assert hard.term >= self.hard.term, f"term falls: {hard} after {self.hard}"
        if hard != self.hard:
            self.hard = hard
            self.version += 1

    def send(self, message: AnyMessage, last: OpId = NO_OP) -> None:
        """Queue a message that depends on the current hard state, and on the log up to `last`."""
        if last.index <= self.log.stable:
            last = NO_OP
        self.out.send.append(Outgoing(message, DurablePoint(self.version, last)))

    def append(self, entry: Entry) -> None:
        """Append an entry to the log; a configuration is active at once (dissertation 4.1)."""
        if entry.kind is EntryKind.CONFIG:
            config = membership.decode(entry.payload, entry.id)
            self.log.append(entry)
            self.configs.adopt(config)
            self.out.config = config
            self._update_role()
        else:
            self.log.append(entry)

    def truncate(self, first: int) -> None:
        """Remove entries from `first` on, and the configurations among them."""
        self.log.truncate(first)
        self.version += 1
        self.truncated_version = self.version
        if self.configs.truncate(first):
            self.out.config = self.configs.active
            self._update_role()

    def commit(self, index: int) -> None:
        """Advance the commit index."""
        self.log.commit(index)
        self.commit_configs()

    def commit_configs(self) -> None:
        """Mark configurations as committed whose entries are committed and durable here."""
        if self.configs.pending and self.configs.commit(min(self.log.committed, self.log.stable)):
            self.out.config_committed = self.configs.committed

    # ---- role ------------------------------------------------------------------------------------

    def _become(self, state: RaftState) -> None:
        assert (self.state, state) in TRANSITIONS, f"{self.uuid}: {self.state} -> {state}"
        if self.state is RaftState.LEADER:
            self.leadership = None
            self.dirty = False
            self.verified = self.log.committed
            self.reset_timer()
        self.state = state
        self.votes = {}
        self._update_role()

    def role_now(self) -> Role:
        """Return the role, derived from state and configuration."""
        me = self.configs.active.get(self.uuid)
        if self.state is RaftState.LEADER:
            return Role.LEADER
        if me is None:
            return Role.NON_PARTICIPANT
        if not me.voter:
            return Role.LEARNER
        return Role.FOLLOWER if self.state is RaftState.FOLLOWER else Role.CANDIDATE

    def _update_role(self) -> None:
        role = self.role_now()
        if role is not self.role:
            assert (self.role, role) in ROLE_TRANSITIONS, f"{self.uuid}: {self.role} -> {role}"
            self.role = role

    def become_follower(self, term: int, leader: ServerUuid | None) -> None:
        """Become follower in `term`, which may be the current one."""
        new_term = term > self.term
        self._become(RaftState.FOLLOWER)
        self.leader = leader
        if new_term:
            self.set_hard_state(HardState(term))
            self._forget_leader_of_term()

    def become_pre_candidate(self) -> None:
        """Start a pre-vote; neither term nor vote changes (dissertation 9.6)."""
        self._become(RaftState.PRE_CANDIDATE)
        self.leader = None

    def become_candidate(self) -> None:
        """Enter the next term and vote for itself; the vote counts once it is durable."""
        self._become(RaftState.CANDIDATE)
        self.leader = None
        self.set_hard_state(HardState(self.term + 1, self.uuid))
        self.self_vote_version = self.version
        self._forget_leader_of_term()

    def become_leader(self, leadership: Leadership) -> None:
        """Become leader of the current term."""
        self._become(RaftState.LEADER)
        self.promise_ticks = 0  # the leader to whom it was made cannot count on it any more
        self.leader = self.uuid
        self.leadership = leadership

    def _forget_leader_of_term(self) -> None:
        self.verified = self.log.committed  # what is committed agrees with every later leader
        self.round_seen = 0
        self.retain_index = 0


def recover(core: RaftCore, entries: Sequence[Entry], commit: int, applied: int) -> None:
    """Restore the state of an earlier run; the last configuration in the log is active (4.1).

    Args:
        core: new.
        entries: entries of the log, oldest first; only configurations are used.
        commit: index known to be committed.
        applied: index up to which the state machine's files have applied.

    Raises:
        LogGap: the files have applied entries that the log does not have.
        Corrupt: the log is newer than the recovered term, so a vote may be lost.
    """
    log = core.log
    if log.last.term > core.term:
        raise Corrupt(
            f"the log of {core.uuid} reaches {log.last}, but the recovered term is {core.term}: its vote "
            "may be lost too; copy this replica from another one"
        )
    commit = max(commit, applied, log.base.index)
    if commit > log.last.index:
        raise LogGap(
            f"entries up to {commit} are known to be committed, but the log of {core.uuid} ends at "
            f"{log.last}; copy this replica from another one"
        )
    for entry in entries:
        if entry.kind is EntryKind.CONFIG and entry.id.index > core.configs.committed.id.index:
            core.configs.adopt(membership.decode(entry.payload, entry.id))
    core.role = core.role_now()
    core.commit(commit)
    core.verified = commit
    core.ticks_since_leader = core.options.election_ticks
    core.promise_ticks = _promised_before(core)
    log.handed_apply = log.applied = max(applied, log.base.index)
    log.note_applied(log.applied)
    core.reset_timer()


def _promised_before(core: RaftCore) -> int:
    """Return the ticks for which an earlier run of this member may have promised to take part in no election.

    A member that has entered no term has promised nothing. Neither has a sole voter: no other member leads by
    its promise, unless an unsafe recovery has removed one that did.
    """
    active = core.configs.active
    new = core.hard.term == 0 and core.log.last == NO_OP
    alone = active.voters == (core.uuid,) and not active.lost
    return 0 if new or alone else core.options.restart_ticks
