"""A leader's view of one peer, and what else it remembers only while it leads.

A peer is *probed* until one answer shows where its log agrees; then entries are *streamed* ahead of
the answers, within a window of bytes. A refusal, or silence about something sent, leads back to probing.

    0 <= match <= received < next        match: agrees and durable there; received: agrees
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from nyala.common.ids import ServerUuid

STALL_HEARTBEATS = 2
"""Heartbeats without news of what was sent, after which it counts as lost."""


class Flow(Enum):
    """Mode in which entries are sent to a peer."""

    PROBE = "probe"
    STREAM = "stream"


class Progress:
    """Progress of one peer, by its leader; its transitions are here, their reasons in `leader.py`."""

    __slots__ = (
        "doubted", "flow", "full", "heard_at", "hlc", "inflight", "inflight_bytes", "match", "moved_at",
        "needs_copy", "next", "quiet", "reading", "received", "round", "seen", "since", "waiting",
    )  # fmt: skip

    def __init__(self, next_index: int, now: int, since: int = 0) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.received = 0
        self.next = next_index
        self.waiting = False  # a probe is under way
        self.reading = False  # the host is reading entries for it
        self.needs_copy = False
        self.doubted = False  # refused something below `match`: the next heartbeat asks for that
        self.full = False  # it has no room: no entries are sent until an answer says that it has
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self.inflight_bytes = 0
        self.heard_at = now  # tick of the last answer in this term
        self.moved_at = now  # tick at which `match` last grew, or nothing was missing
        self.round = 0  # highest read round it echoed
        self.hlc = 0  # highest hybrid time it answered with
        self.since = since  # read round that was current when it joined
        self.quiet = 0  # heartbeats since `received` moved, with entries on the way
        self.seen = 0  # `received` at the last heartbeat

    @property
    def located(self) -> bool:
        """True if it has told where its log agrees: until then a `match` of 0 says nothing."""
        return self.flow is Flow.STREAM or self.match > 0

    def probe(self, next_index: int) -> None:
        """Ask again where the logs agree, from `next_index`; what was on the way no longer counts."""
        self.flow = Flow.PROBE
        self.next = max(next_index, self.match + 1)
        self.received = min(self.received, self.next - 1)
        self.waiting = self.reading = False
        self.inflight.clear()
        self.inflight_bytes = self.quiet = 0

    def forget(self, since: int) -> None:
        """Know nothing of its log any more; `since`: the read round from which on its answers count."""
        self.match = self.received = self.round = self.hlc = 0
        self.since = since
        self.needs_copy = self.doubted = False

    def acknowledge(self, match: int, received: int) -> bool:
        """Take a success; return whether `match` grew."""
        self.doubted = False
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
        """Note a message with entries up to `last_index`."""
        if self.flow is Flow.PROBE:
            self.waiting = True
            return
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next = last_index + 1

    def fill(self) -> None:
        """It has no room for entries: what is on the way was let go, and is sent again when it has room."""
        self.full = True
        self.reading = False
        if self.flow is Flow.STREAM:
            self.next = self.received + 1
            self.inflight.clear()
            self.inflight_bytes = 0

    def stalled(self) -> bool:
        """Called once a heartbeat: whether entries were sent and nothing was heard of them since."""
        if self.flow is Flow.PROBE or self.received + 1 >= self.next or self.received != self.seen:
            self.quiet = 0
        else:
            self.quiet += 1
        self.seen = self.received
        return self.quiet >= STALL_HEARTBEATS


@dataclass(slots=True)
class Round:
    """A read-index round: `index` was committed when it began, `hlc` is what its answers must reach."""

    number: int
    index: int
    hlc: int


@dataclass(slots=True)
class Transfer:
    """Leadership being handed over; `ordered` once TimeoutNow is on its way."""

    to: ServerUuid
    ticks_left: int
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A round of a member that is to be promoted: it began at tick `began`, and ends at index `target`."""

    target: int
    began: int


@dataclass(slots=True)
class Leaving:
    """A peer that the entry at index `target` removed, and that is to be told; see `removed_peers.py`."""

    peer: Progress
    target: int
    heartbeats: int = 0  # since that is committed


@dataclass(slots=True)
class Leadership:
    """All that a leader forgets when it stops leading.

    `first` is the index of its NOOP: until that is committed, nothing is (dissertation 3.6.2, 6.4).
    """

    first: int
    peers: dict[ServerUuid, Progress] = field(default_factory=dict)
    leaving: dict[ServerUuid, Leaving] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)  # unanswered, oldest first
    asked: bool = False  # the newest round has not been sent yet
    transfer: Transfer | None = None
    catching: dict[ServerUuid, CatchUp] = field(default_factory=dict)  # see `promotion.py`
    heartbeat_elapsed: int = 0
    idle: int = 0  # heartbeats without input; see `quiescence.py`
    inputs: tuple[int, ...] = ()  # last index, round and closed time, as they were then
    asleep: dict[ServerUuid, None] = field(default_factory=dict)  # peers that took the offer
