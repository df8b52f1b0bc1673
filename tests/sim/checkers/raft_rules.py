"""Rules of a Raft group after each step, derived from the members' state and their disks.

`GroupWatch.step` checks one member after a step, and what changed since the last check
only; `whole` checks every member's log from scratch and against each other (`raft_invariants.py`).
Over time, for running and stopped members: one leader per term, one log up to an op id, committed entries
stay and are durable on a majority, the active configuration is the last in the log, timestamps increase
with the log, entries that a core counts as durable are on its disk.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nyala.common.ids import OpId
from nyala.raft import membership
from nyala.raft.membership import Configuration
from nyala.raft.messages import Entry, EntryKind
from nyala.raft.node import RaftNode
from nyala.raft.state import RaftCore
from tests.sim.checkers import raft_invariants
from tests.sim.checkers.durable import Kept

Fact = tuple[int, int, EntryKind, bytes]
"""Facts of an entry: term of the previous entry, timestamp, kind, payload."""


@dataclass(slots=True)
class Seen:
    """State of one core's log at the last check.

    Attributes:
        state: state at the last check, to detect cheaply that nothing changed.
        base: index below which entries are not checked.
        terms: of the entries above it.
        committed: index up to which commits were checked.
        configs: the configuration entries of the log, oldest first, above the one it began with.
        first_config: the configuration it began with.
    """

    state: tuple[object, ...]
    base: int
    terms: list[int]
    committed: int
    first_config: OpId
    configs: list[tuple[OpId, bytes]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Index of the last checked entry."""
        return self.base + len(self.terms)


@dataclass(frozen=True, slots=True)
class PutBack:
    """Entries that a member acknowledged before an older image of its disk was put back.

    An acknowledgement may be under way then: the leader of its term counts what was durable when it was sent.

    Attributes:
        term: of the acknowledgements.
        terms: of the acknowledged entries by index.
    """

    term: int
    terms: dict[int, int]

    def counts(self, op: OpId, term: int) -> bool:
        """Return whether the leader of a term may count the member for an entry."""
        return term == self.term and self.terms.get(op.index) == op.term


class GroupWatch:
    """Checker of one group.

    Attributes:
        committed: the newest configuration that any member has known to be committed.

    Args:
        name: of the group, for messages.
        disk: durable state of the disk of a server by uuid; None for an unknown server.
    """

    def __init__(self, name: str, disk: Callable[[str], Kept | None]) -> None:
        self._name = name
        self._disk = disk
        self._seen: dict[RaftNode, Seen] = {}
        self._entries: dict[tuple[int, int], Fact] = {}
        self._committed: dict[int, OpId] = {}
        self._terms: dict[str, int] = {}
        self._put_back: dict[str, PutBack] = {}  # by uuid
        self.leaders: dict[int, str] = {}
        self.committed: Configuration | None = None
        self.highest = 0
        self.checks: Counter[str] = Counter()

    # ---- one member, after a step ------------------------------------------------------------------

    def step(self, name: str, node: RaftNode) -> None:
        """Check the changes of one member.

        Raises:
            AssertionError: with the values.
        """
        core = node.core
        log = core.log
        state = (
            core.version,
            log.last,
            log.committed,
            log.stable,
            core.state,
            core.configs.active.id,
        )
        seen = self._seen.get(node)
        if seen is None:
            seen = self._seen[node] = Seen(
                (), log.base.index, [], log.base.index, core.configs.committed.id
            )
        if seen.state == state:
            return
        seen.state = state
        config = core.configs.committed
        if self.committed is None or config.id > self.committed.id:
            self.committed = config
        self.checks["steps"] += 1
        self._check_log(name, core, seen)
        self._check_config(name, core, seen)
        if node.is_leader:
            self.leads(name, core.term)
        if log.committed > seen.committed:
            self._check_committed(name, core, seen)
        self._check_durable(name, core)

    def leads(self, name: str, term: int) -> None:
        """Record the leader of a term."""
        before = self.leaders.setdefault(term, name)
        assert before == name, f"{self._name}: {before} and {name} lead term {term}"

    def _check_log(self, name: str, core: RaftCore, seen: Seen) -> None:
        """Compare new entries with those of all logs at the same index."""
        log, terms = core.log, seen.terms
        keep = min(seen.last, log.last.index)
        while keep > seen.base and terms[keep - seen.base - 1] != log.term(keep):
            keep -= 1
        del terms[keep - seen.base :]
        while seen.configs and seen.configs[-1][0].index > keep:
            seen.configs.pop()
        if keep == log.last.index:
            return
        entries = log.slice(max(keep + 1, log.first_cached), 1 << 62)
        assert entries is not None, f"{self._name}: {name} has an inconsistent log {log!r}"
        if not terms and entries and entries[0].id.index > keep + 1:
            seen.base = keep = entries[0].id.index - 1
        for entry in entries:
            before = terms[-1] if terms else log.term(keep)
            self._check_entry(
                name, entry, before, log.stamp(keep) if keep >= log.first_cached else 0
            )
            terms.append(entry.id.term)
            keep = entry.id.index
            if entry.kind is EntryKind.CONFIG and keep > seen.first_config.index:
                seen.configs.append((entry.id, entry.payload))
        self.checks["entries"] += len(entries)

    def _check_entry(self, name: str, entry: Entry, before: int, stamp: int) -> None:
        op = entry.id
        what = f"{self._name}: {op} at {name}"
        assert op.term >= before, f"{what} follows term {before}"
        assert entry.stamp > stamp, f"{what} is stamped {entry.stamp} after {stamp}"
        fact = (before, entry.stamp, entry.kind, entry.payload)
        kept = self._entries.setdefault((op.term, op.index), fact)
        assert kept == fact, f"{what} is {fact}, and was {kept} elsewhere: logs do not match"

    def _check_config(self, name: str, core: RaftCore, seen: Seen) -> None:
        active = core.configs.active
        last = seen.configs[-1][0] if seen.configs else seen.first_config
        if seen.configs or active.id.index > seen.base:
            assert active.id == last, (
                f"{self._name}: {name} uses the configuration at {active.id}, its log's last is {last}"
            )
        if seen.configs:
            assert membership.encode(active) == seen.configs[-1][1], f"{self._name}: {active}"

    def _check_committed(self, name: str, core: RaftCore, seen: Seen) -> None:
        log = core.log
        for index in range(max(seen.committed, log.base.index) + 1, log.committed + 1):
            op = log.op_id(index)
            kept = self._committed.setdefault(index, op)
            assert kept == op, f"{self._name}: committed entry {kept} became {op} at {name}"
        seen.committed = log.committed
        if log.committed > self.highest:
            op = log.op_id(log.committed)
            if core.leadership is not None:
                assert op.term == core.term, (
                    f"{self._name}: {name} leads term {core.term} and committed {op}, of an older term"
                )
            self._check_majority(name, core, op)
            self.highest = log.committed

    def _check_majority(self, name: str, core: RaftCore, op: OpId) -> None:
        """Check that a committed entry is on the disks of a majority of the active or previous members."""
        self.checks["commits"] += 1
        shown = []
        for config in (core.configs.active, core.configs.committed):
            on = [u for u in config.voters if self._holds(u, op, core.term)]
            if 2 * len(on) > len(config.voters):
                return
            shown.append(f"{len(on)} of {len(config.voters)}")
        raise AssertionError(
            f"{self._name}: {name} committed {op}, which is durable on {' or '.join(shown)} voters"
        )

    def _holds(self, uuid: str, op: OpId, term: int) -> bool:
        """Return whether a voter has an entry on its disk, or acknowledged it to the leader of a term."""
        kept, before = self._disk(uuid), self._put_back.get(uuid)
        return kept is None or kept.holds(op) or (before is not None and before.counts(op, term))

    def _check_durable(self, name: str, core: RaftCore) -> None:
        kept, log = self._disk(core.uuid), core.log
        before = self._terms.get(name, 0)
        assert core.term >= before, f"{self._name}: {name} was in term {before}, now in {core.term}"
        if kept is not None and log.stable > log.base.index:
            op = log.op_id(log.stable)
            assert kept.holds(op), (
                f"{self._name}: {name} counts {op} as durable; its disk holds "
                f"{kept.terms.get(op.index, 'no entry')}.{op.index}, the last is {kept.last}"
            )
            # A replaced server that returns has the member's UUID, and not its disk.
            self._terms[name] = min(kept.term, core.term)

    def put_back(self, name: str, uuid: str, acknowledged: tuple[int, int]) -> None:
        """Handle the replacement of a member's disk by an older image, before it is replaced.

        Args:
            name: name of the server.
            uuid: the member's.
            acknowledged: its last term and index; (0, 0): none.
        """
        self._terms.pop(name, None)
        kept, (term, last) = self._disk(uuid), acknowledged
        entries = {} if kept is None else kept.terms
        self._put_back[uuid] = PutBack(term, {i: t for i, t in entries.items() if i <= last})

    # ---- all members together ----------------------------------------------------------------------

    def whole(self, members: Iterable[tuple[str, RaftNode]]) -> None:
        """Check the complete state of every member."""
        together = list(members)
        for name, node in together:
            self.step(name, node)
            raft_invariants.check(node)
        self.checks["whole"] += 1


def standing(node: RaftNode) -> str:
    """Return the state of a member in one readable line."""
    core, log = node.core, node.core.log
    voters = len(core.configs.active.voters)
    return (
        f"= {core.state.value} in term {core.term}, log {log.last}, durable {log.stable}, "
        f"committed {log.committed}, configuration {core.configs.active.id} ({voters} voters)"
    )
