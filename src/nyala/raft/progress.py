"""A leader's state per peer, and other state that exists only while it leads.

In PROBE mode one message at a time is sent until a reply shows where the logs agree; in STREAM mode entries
are sent ahead of the replies, within a window of bytes. A refusal, or no progress after entries were sent,
leads back to PROBE.

    0 <= match <= received < next        match: agrees and is durable there; received: agrees
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from nyala.common.ids import ServerUuid

STALL_HEARTBEATS = 2
"""Heartbeats without progress after which entries in flight count as lost."""


class Flow(Enum):
    """Mode in which entries are sent to a peer."""

    PROBE = "probe"
    STREAM = "stream"


class Progress:
    """Progress of one peer, as its leader tracks it; `leader.py` has the reasons for the transitions."""

    __slots__ = (
        "flow",
        "hlc",
        "inflight",
        "inflight_bytes",
        "joined_round",
        "last_progress_at",
        "last_received",
        "last_reply_at",
        "match",
        "needs_copy",
        "next",
        "out_of_memory",
        "probe_match",
        "promise_ms",
        "reading",
        "received",
        "round",
        "stalled_heartbeats",
        "waiting",
    )  # fmt: skip

    def __init__(self, next_index: int, now: int, joined_round: int = 0) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.received = 0
        self.next = next_index
        self.waiting = False  # a probe is in flight
        self.reading = False  # the host is reading entries for it
        self.needs_copy = False
        self.probe_match = False  # it refused an index below `match`: probe `match` next
        self.out_of_memory = False  # no memory for entries: none are sent until a reply clears this
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self.inflight_bytes = 0
        self.last_reply_at = now  # tick of the last reply in this term
        self.last_progress_at = now  # tick at which `match` last grew, or the peer lacked nothing
        self.round = 0  # highest read round that it confirmed
        self.hlc = 0  # highest hybrid time of its replies
        self.promise_ms = 0  # promised when it received `round`; see `reads.py`
        self.joined_round = joined_round  # read round that was current when it joined
        self.stalled_heartbeats = 0  # heartbeats since `received` changed, with entries in flight
        self.last_received = 0  # `received` at the last heartbeat

    @property
    def match_known(self) -> bool:
        """True if a reply has shown where its log agrees; before that a `match` of 0 means unknown."""
        return self.flow is Flow.STREAM or self.match > 0

    def probe(self, next_index: int) -> None:
        """Switch to PROBE mode from `next_index`; entries in flight no longer count."""
        self.flow = Flow.PROBE
        self.next = max(next_index, self.match + 1)
        self.received = min(self.received, self.next - 1)
        self.waiting = self.reading = False
        self.inflight.clear()
        self.inflight_bytes = self.stalled_heartbeats = 0

    def reset(self, joined_round: int) -> None:
        """Discard what is known of its log; its replies count again from read round `joined_round` on."""
        self.match = self.received = self.round = self.hlc = 0
        self.joined_round = joined_round
        self.needs_copy = self.probe_match = False

    def acknowledge(self, match: int, received: int) -> bool:
        """Process a successful reply; return whether `match` grew."""
        self.probe_match = False
        grew = match > self.match
        if grew:
            self.match = match
        if max(received, match) > self.received or self.flow is Flow.PROBE:
            self.needs_copy = False
        self.received = max(self.received, received, self.match)
        if self.flow is Flow.PROBE:
            self.flow = Flow.STREAM
            self.waiting = self.reading = False
            self.next = self.received + 1
        self.next = max(self.next, self.received + 1)
        while self.inflight and self.inflight[0][0] <= self.match:
            self.inflight_bytes -= self.inflight.popleft()[1]
        return grew

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Record a sent message with entries up to `last_index`."""
        if self.flow is Flow.PROBE:
            self.waiting = True
            return
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next = last_index + 1

    def mark_out_of_memory(self) -> None:
        """Record that it has no memory for entries; those in flight are sent again later."""
        self.out_of_memory = True
        self.reading = False
        if self.flow is Flow.STREAM:
            self.next = self.received + 1
            self.inflight.clear()
            self.inflight_bytes = 0

    def stalled(self) -> bool:
        """Return, once per heartbeat, whether entries in flight have made no progress."""
        if (
            self.flow is Flow.PROBE
            or self.received + 1 >= self.next
            or self.received != self.last_received
        ):
            self.stalled_heartbeats = 0
        else:
            self.stalled_heartbeats += 1
        self.last_received = self.received
        return self.stalled_heartbeats >= STALL_HEARTBEATS


@dataclass(slots=True)
class Round:
    """A read-index round: the commit index at its start, and the hybrid time that replies must reach."""

    number: int
    index: int
    hlc: int


@dataclass(slots=True)
class Transfer:
    """A leadership transfer; `ordered` once TimeoutNow is sent."""

    to: ServerUuid
    ticks_left: int
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A catch-up round of a member to be promoted: it began at tick `began` and ends at index `target`."""

    target: int
    began: int


@dataclass(slots=True)
class RemovedPeer:
    """A peer that the entry at index `target` removed; see `removed_peers.py`."""

    peer: Progress
    target: int
    heartbeats: int = 0  # since that entry was committed


@dataclass(slots=True)
class Leadership:
    """State that a leader discards when it stops leading.

    `first` is the index of its NOOP: nothing commits before that entry does (dissertation 3.6.2, 6.4).
    """

    first: int
    peers: dict[ServerUuid, Progress] = field(default_factory=dict)
    removed: dict[ServerUuid, RemovedPeer] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)  # unconfirmed, oldest first
    round_unsent: bool = False  # the newest round has not been sent yet
    transfer: Transfer | None = None
    catch_ups: dict[ServerUuid, CatchUp] = field(default_factory=dict)  # see `promotion.py`
    heartbeat_elapsed: int = 0
    lease_from: int = 0  # lowest read round whose confirmation gives a lease; see `reads.py`
    idle: int = 0  # heartbeats without input; see `quiescence.py`
    idle_inputs: tuple[int, ...] = ()  # last index, round and closed time at that heartbeat
    quiesced_peers: dict[ServerUuid, None] = field(default_factory=dict)  # agreed to quiesce
