"""RaftNode: one member of one group, as a pure machine. Inputs go in, `Ready` comes out.

The host calls any of the inputs, then `ready()`, and owes what that returns (rules in `ready.py`). One
caller at a time, on one loop. `hlc` is the reading of the host's hybrid clock *after* it has merged
the incoming message's; the core never reads a clock. Departures from the dissertation:
docs/internals/raft-departures.md.
"""

from collections.abc import Callable, Sequence

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, DurablePoint, Entry, HardState
from nyala.raft.options import RaftOptions
from nyala.raft.ready import Ready
from nyala.raft.status import Status


class RaftNode:
    """One member of a group.

    Args:
        uuid: this server.
        config: the last committed configuration (from consensus metadata); configurations that the
            log holds after `config.id.index` are adopted, committed or not.
        hard_state: term and vote as recovered; durable.
        log: recovered entries after `base`, in index order; durable.
        base: op id of the entry before the first of `log` (NO_OP: the log is whole).
        base_stamp: stamp of the entry at `base`.
        commit_index: what is known to be committed (at least what is in the files).
        applied_index: what the state machine's files hold; `Ready.apply` begins after it.
        options: pace and limits.
        random: n -> a number in 0..n-1.

    Raises:
        LogGap: `log` does not continue `base`, or its terms or stamps fall.
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
        commit_index: int = 0,
        applied_index: int = 0,
        options: RaftOptions | None = None,
        random: Callable[[int], int],
    ) -> None:
        raise AssertionError("bodies follow in the next commit")

    # ---- cheap views -----------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this node leads its group in its term (perhaps not yet accepting reads)."""
        raise AssertionError

    @property
    def term(self) -> int:
        """Current term."""
        raise AssertionError

    @property
    def leader(self) -> ServerUuid | None:
        """Leader of the current term, when known."""
        raise AssertionError

    @property
    def commit_index(self) -> int:
        """Last index known to be committed."""
        raise AssertionError

    @property
    def last(self) -> OpId:
        """Op id of the last entry, durable or not."""
        raise AssertionError

    @property
    def last_stamp(self) -> int:
        """Stamp of the last entry; the host's next stamp lies above it."""
        raise AssertionError

    def status(self) -> Status:
        """Return everything that is worth showing; costs more than the properties above."""
        raise AssertionError

    # ---- inputs ----------------------------------------------------------------------------------

    def step(self, message: AnyMessage, hlc: int) -> None:
        """Take a message from another member; may be lost, late, doubled or out of order.

        Raises:
            Corrupt: the message contradicts itself or the protocol; nothing was changed.
        """

    def tick(self, hlc: int) -> None:
        """Let one tick (50 ms) pass."""

    def propose(self, payload: bytes, stamp: int) -> OpId | None:
        """Append an OPERATION, to be replicated by the next `ready()`.

        Returns:
            Its op id, or None when this node does not lead (or is handing leadership over). What became
            of it is known when an entry of that index is applied: the same term means it took effect,
            any other that it never will.
        """
        raise AssertionError

    def read_index(self, hlc: int = 0) -> int | None:
        """Join the next read-index round (dissertation 6.4); reads of one `ready()` share a round.

        Args:
            hlc: the read's hybrid time; the round is confirmed by acknowledgements with HLCs at or
                above it, so that no later leader stamps at or below it (design section 8).

        Returns:
            The round, answered by `Ready.confirmed` with this or a later round; None when not leader.
            A round whose leader steps down is never answered.
        """
        raise AssertionError

    def durable(self, point: DurablePoint) -> None:
        """Note that everything up to a Ready's `point` is on disk."""

    def entries_read(self, peer: ServerUuid, entries: Sequence[Entry]) -> None:
        """Answer a `ReadRequest`; no entries means that the log no longer holds them."""

    def transfer(self, to: ServerUuid) -> None:
        """Hand leadership to `to` (dissertation 3.10); given up after an election timeout.

        Raises:
            NotLeader: this node does not lead.
            InvalidArgument: `to` is this node, not a voter, or not electable.
        """

    def applied(self, index: int) -> None:
        """Note that entries up to `index` are applied; their memory may go."""

    def publish_closed(self, stamp: int) -> None:
        """Promise followers that this leader stamps nothing at or below `stamp`.

        The host may do so only for a `stamp` that a confirmed read round covered, with every entry at
        or below it applied (design section 8). Ignored when not leader.
        """

    # ---- output ----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Drain what the host owes since the last call; `Ready.empty` when nothing."""
        raise AssertionError
