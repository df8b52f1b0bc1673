"""Work that the host executes for the core after each step, and its order.

The host keeps to these rules:
1. `persist` and `append` of one Ready go to the log as one record batch, in the order of the Readys.
2. An `Outgoing` leaves only when its `after` point is durable (`DurablePoint.covers`); those that may
   leave keep their order. One that waits may be overtaken: a heartbeat's answer asserts nothing new,
   and must not wait for a slow disk.
3. `apply` is handed to the state machine in index order; it needs no durable point of its own, since
   the core puts an entry there only when it is committed and durable *here*.
4. When a batch is durable, the host calls `RaftNode.durable(point)` with what is now on disk.
5. An entry of `append` replaces whatever was logged before it at its index *and above*, whatever the
   terms: a new leader may overwrite an entry by one of a lower term (dissertation figure 3.7).
"""

import msgspec

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Configuration
from nyala.raft.messages import AnyMessage, DurablePoint, Entry, HardState


class Outgoing(msgspec.Struct, frozen=True):
    """A message, and the point that must be durable before it is sent."""

    message: AnyMessage
    after: DurablePoint


class ReadRequest(msgspec.Struct, frozen=True):
    """Request to read entries that the core does not cache from the log, for `peer` or to be applied.

    The host calls `RaftNode.entries_read(peer, entries)`, with entries from `first_index` on. If `peer` is
    this member itself, they are to be applied.
    """

    peer: ServerUuid
    first_index: int
    max_bytes: int


class ReadConfirmed(msgspec.Struct, frozen=True):
    """A read-index round (dissertation 6.4) that a majority has confirmed.

    A read that joined round <= `round` is linearizable once `index` is applied. When a majority received the
    round, it promised to take part in no election for `promise_ms` milliseconds (`reads.py`).
    """

    round: int
    index: int
    promise_ms: int = 0


NOWHERE = DurablePoint()
"""Point that is always durable."""


class Ready(msgspec.Struct, frozen=True):
    """Work for the host. The fields are in the order in which they are executed."""

    persist: HardState | None = None
    append: tuple[Entry, ...] = ()
    point: DurablePoint = NOWHERE  # durable once persist and append of this Ready are
    send: tuple[Outgoing, ...] = ()
    read: tuple[ReadRequest, ...] = ()
    apply: tuple[Entry, ...] = ()
    confirmed: ReadConfirmed | None = None
    config: Configuration | None = None  # newly active configuration, committed or not
    config_committed: Configuration | None = None  # to be saved to consensus metadata

    @property
    def empty(self) -> bool:
        """True if there is no work."""
        return self is NOTHING or self == NOTHING


NOTHING = Ready()
"""A `Ready` without work."""
