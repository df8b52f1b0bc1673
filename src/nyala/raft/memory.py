"""What one member of a group remembers, durably or not. What changes it is `state.py`.

Rules: fields, and what can be read off them; `reset_timer` alone writes, since it only draws a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.log_view import LogView
from nyala.raft.membership import Configuration, History
from nyala.raft.messages import Entry, HardState
from nyala.raft.options import RaftOptions
from nyala.raft.progress import Leadership
from nyala.raft.ready import Outgoing, ReadConfirmed, ReadRequest
from nyala.raft.status import Role


class Stand(Enum):
    """What a member is doing about leadership."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True)
class Output:
    """What `ready()` will hand out beside log and hard state; named as in `Ready`."""

    send: list[Outgoing] = field(default_factory=list)
    read: list[ReadRequest] = field(default_factory=list)
    apply: tuple[Entry, ...] = ()  # read from the log; what is in memory follows
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
class Memory:
    """Everything that a member remembers; see `RaftNode` for the first fields."""

    uuid: ServerUuid
    options: RaftOptions
    random: Callable[[int], int]
    log: LogView
    configs: History
    # durable promises
    hard: HardState
    version: int = 0  # of (hard state, truncations): what a message may have to wait for
    version_out: int = 0  # given to the host
    durable_version: int = 0
    truncated_version: int = 0  # a durable point below this says nothing of today's log
    # role
    stand: Stand = Stand.FOLLOWER
    role: Role = Role.NON_PARTICIPANT  # what `stand` and the active configuration come to
    leader: ServerUuid | None = None
    leadership: Leadership | None = None  # exactly when LEADER
    votes: dict[ServerUuid, bool] = field(default_factory=dict)
    self_vote_version: int = 0  # a candidate's own vote counts once this is durable
    # time, in ticks
    ticks: int = 0
    elapsed: int = 0  # since the election timer was reset
    timeout: int = 0
    silent: int = 0  # since the leader was heard from
    # a follower's view of this term's leader
    verified: int = 0  # the log agrees with the leader's up to here
    needed: int = 0  # lowest index that some member may still have to be sent; 0: not known
    told: int = 0  # highest index that a leader told to be committed, here or not
    told_in: int = 0  # that leader's term
    held: int = 0  # lowest index that a copy made from here needs; 0: none is made
    owed: OpId = NO_OP  # acknowledged and lost since, by a leader's word: this log once reached it
    round_seen: int = 0
    round: int = 0  # highest read round begun here; never falls, so late answers cannot mislead
    hlc: int = 0
    closed: int = 0
    closed_pending: tuple[int, int] | None = None  # (stamp, index to be applied first)
    out: Output = field(default_factory=Output)
    dirty: bool = False  # a leader has something to replicate
    asleep: bool = False  # see `quiescence.py`
    full: bool = False  # a follower's host has no room for entries: none are taken, answers say so
    lending: ServerUuid | None = None  # for whom the host reads the log: see `witness.py`

    # ---- who we are ------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Current term."""
        return self.hard.term

    @property
    def voters(self) -> Sequence[ServerUuid]:
        """Voters of the active configuration."""
        return self.configs.active.voters

    @property
    def may_stand(self) -> bool:
        """Whether this member may become leader: a voter, and not a witness."""
        return self.configs.active.may_lead(self.uuid)

    @property
    def short(self) -> bool:
        """Whether this log lacks entries that it acknowledged, or was told to be committed."""
        return not self.complete(self.log.last)

    def complete(self, last: OpId) -> bool:
        """Whether a log that ends at `last` has what is known here of what a majority has.

        A log with entries of a later term than the word's has what was committed before.
        """
        return last >= self.owed and (last.term > self.told_in or last.index >= self.told)

    @property
    def hears_leader(self) -> bool:
        """Whether a leader was heard from within the minimum election timeout (dissertation 4.2.3)."""
        if self.stand is Stand.LEADER:
            return True
        return self.leader is not None and self.silent < self.options.election_ticks

    def reset_timer(self) -> None:
        """Begin a new, freshly drawn election timeout; who votes alone has nobody to wait for.

        Nor has a new group, if it is eager: no leader can be disturbed that never was.
        """
        self.elapsed = 0
        if self.voters == (self.uuid,):
            self.timeout = 1
            return
        least = self.options.election_ticks
        new = self.options.eager and self.hard.term == 0 and self.log.last == NO_OP
        self.timeout = (1 if new else least) + self.random(least)
