"""The coordinator's log in the order in which the journal's replicas applied it, and its replay.

A commit is a step that changed the log. Answers, calls and replays are compared with commits by
their positions: the number of commits before them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from nyala.journal import steps
from nyala.journal.manifest import JournalInfo
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.operations.kinds import operations
from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.state import CoordinatorState
from nyala.recipes.records import ALIVE
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.journals.order import JournalOrder

LOG = "ensemble"
INTENT, DONE = b"intent", b"done"


@dataclass(frozen=True, slots=True)
class Commit:
    """A step that changed the log.

    Attributes:
        position: number of this commit; the first is 1.
        epoch: of the leader.
        entries: id and data of those that it appended.
        invalidated: id and data of those that became invalid by it.
    """

    position: int
    epoch: int
    entries: tuple[tuple[int, bytes], ...]
    invalidated: tuple[tuple[int, bytes], ...]


def words(data: bytes) -> tuple[bytes, str, bytes] | None:
    """Return state, kind and payload of an entry; None: it is none of an operation."""
    parts = data.split(b" ", 2)
    if len(parts) != 3 or parts[0] not in (INTENT, DONE):
        return None
    return parts[0], parts[1].decode(), parts[2]


class _NoCalls:
    """Calls of a replay: none is made."""

    async def take(self, server: ServerId, tablets: Sequence[HashRange]) -> None:
        """See `OwnershipCalls`."""
        raise AssertionError("a replay calls no servers")

    async def drop(self, server: ServerId, table_id: int) -> None:
        """See `OwnershipCalls`."""
        raise AssertionError("a replay calls no servers")

    async def split(self, server: ServerId, table_id: int, split_hash: int) -> None:
        """See `OwnershipCalls`."""
        raise AssertionError("a replay calls no servers")


@dataclass(slots=True)
class CommitLog:
    """All commits.

    Attributes:
        on_commit: called with each.
        commits: all of them.
        epochs: epoch of each leader, with the position of its establishment.
        valid: valid entries after each commit, by id.
    """

    on_commit: Callable[[Commit], None]
    commits: list[Commit] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    valid: list[dict[int, bytes]] = field(default_factory=lambda: [{}])
    _replayed: dict[int, "Described"] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Number of commits."""
        return len(self.commits)

    def last_of(self, epoch: int) -> int:
        """Return the position of the last commit of a leader; 0: it made none."""
        later = [at for one, at in self.epochs if one > epoch]
        return min(later) - 1 if later else self.position

    def first_of(self, epoch: int) -> int:
        """Return the position at which a leader was established."""
        return next(at for one, at in self.epochs if one == epoch)

    def took_effect(self, step: steps.Step, ids: Sequence[int]) -> None:
        """Take a step that took effect."""
        valid, appended = dict(self.valid[-1]), list[tuple[int, bytes]]()
        gone, alive = list[tuple[int, bytes]](), False
        for change, one in zip(step.changes, ids, strict=True):
            if not isinstance(change, steps.Append | steps.Invalidate) or change.log != LOG:
                continue
            gone += [(i, valid.pop(i)) for i in _invalidated(change) if i in valid]
            if isinstance(change, steps.Append):
                appended.append((one, change.data))
                valid[one] = change.data
                alive = alive or change.data.startswith(ALIVE)
        if not appended and not gone:
            return  # a renewal
        if alive:
            self.epochs.append((appended[0][0], self.position + 1))
        epoch = self.epochs[-1][0]
        commit = Commit(self.position + 1, epoch, tuple(appended), tuple(gone))
        self.commits.append(commit)
        self.valid.append(valid)
        self.on_commit(commit)

    def replayed(self, position: int) -> "Described":
        """Return the state of a replay up to a position: results first, then the operation under way."""
        found = self._replayed.get(position)
        if found is None:
            found = self._replayed[position] = described(replay(self.valid[position]))
            if len(self._replayed) > 50:
                del self._replayed[next(iter(self._replayed))]
        return found


def _invalidated(change: steps.Append | steps.Invalidate) -> Sequence[int]:
    return change.invalidates if isinstance(change, steps.Append) else change.ids


def replay(valid: dict[int, bytes]) -> CoordinatorState:
    """Return the state that valid entries describe, as a process without any other knowledge finds it."""
    state = CoordinatorState()
    kinds = {k.kind: k for k in operations(OperationContext(state, _NoCalls()))}
    entries = [found for _, data in sorted(valid.items()) if (found := words(data)) is not None]
    for state_word in (DONE, INTENT):
        for word, kind, payload in entries:
            if word == state_word:
                kinds[kind].apply(payload)
    return state


class Described(NamedTuple):
    """A whole state as a dump has it, compared at a twentieth of the cost: records stay serialised."""

    version: int
    confirmed: int
    next_table_id: int
    records: tuple[bytes, ...]


def described(state: CoordinatorState) -> Described:
    """Return everything that the dump of a state has."""
    records = tuple(r.SerializeToString(deterministic=True) for r in state.describe())
    servers = state.servers
    return Described(servers.version, servers.confirmed, state.tablets.next_id, records)


def is_lint_free(valid: Iterable[bytes], state: CoordinatorState) -> bool:
    """Return whether the records among valid entries are those that describe a state, and no others."""
    found = [record for data in valid if (record := _record(data)) is not None]
    return sorted(found) == sorted(described(state).records)


@lru_cache(maxsize=2_000)
def _record(data: bytes) -> bytes | None:
    """Return the record of an entry without its epoch, as `described` has it; None: it has none."""
    found = words(data)
    if found is None:
        return None
    record = pb.Record.FromString(found[2])
    record.epoch = 0
    return record.SerializeToString(deterministic=True)


class CommitOrder(JournalOrder):
    """The order of steps of a journal; it adds its commits to a `CommitLog`.

    Args:
        info: definition of the journal.
        log: gets the steps that took effect.
    """

    def __init__(self, info: JournalInfo, log: CommitLog) -> None:
        super().__init__(info)
        self._log = log

    def apply(self, step: steps.Step, stamp: int, result: steps.Result) -> None:
        """Compare the result with the model's; candidates send a step again if its outcome is unknown."""
        self.check_result(step, stamp, result)
        if isinstance(result, steps.Done):
            self._log.took_effect(step, result.ids)
