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
        "flow", "full", "hlc", "inflight", "inflight_bytes", "joined_round", "last_progress_at",
        "last_received", "last_reply_at", "match", "needs_copy", "next", "probe_match", "reading",
        "received", "round", "stalled_heartbeats", "waiting",
    )  # fmt: skip

    def __init__(self, next_index: int, now: int, joined_round: int = 0) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.received = 0
        self.next = next_index
        self.waiting = False  # a probe is under way
        self.reading = False  # the host is reading entries for it
        self.needs_copy = False
        self.probe_match = False  # it refused an index below `match`: probe `match` next
        self.full = False  # it has no room: no entries are sent until an answer says that it has
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self.inflight_bytes = 0
        self.last_reply_at = now  # tick of the last answer in this term
        self.last_progress_at = now  # tick at which `match` last grew, or nothing was missing
        self.round = 0  # highest read round it echoed
        self.hlc = 0  # highest hybrid time it answered with
        self.joined_round = joined_round  # read round that was current when it joined
        self.stalled_heartbeats = 0  # heartbeats since `received` moved, with entries on the way
        self.last_received = 0  # `received` at the last heartbeat

    @property
    def match_known(self) -> bool:
        """True if it has told where its log agrees: until then a `match` of 0 says nothing."""
        return self.flow is Flow.STREAM or self.match > 0

    def probe(self, next_index: int) -> None:
        """Ask again where the logs agree, from `next_index`; what was on the way no longer counts."""
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
        """Take a success; return whether `match` grew."""
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
        """Note a message with entries up to `last_index`."""
        if self.flow is Flow.PROBE:
            self.waiting = True
            return
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next = last_index + 1

    def mark_full(self) -> None:
        """It has no room for entries: what is on the way was let go, and is sent again when it has room."""
        self.full = True
        self.reading = False
        if self.flow is Flow.STREAM:
            self.next = self.received + 1
            self.inflight.clear()
            self.inflight_bytes = 0

    def stalled(self) -> bool:
        """Called once a heartbeat: whether entries were sent and nothing was heard of them since."""
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
class RemovedPeer:
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
    removed: dict[ServerUuid, RemovedPeer] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)  # unanswered, oldest first
    round_unsent: bool = False  # the newest round has not been sent yet
    transfer: Transfer | None = None
    catch_ups: dict[ServerUuid, CatchUp] = field(default_factory=dict)  # see `promotion.py`
    heartbeat_elapsed: int = 0
    idle: int = 0  # heartbeats without input; see `quiescence.py`
    idle_inputs: tuple[int, ...] = ()  # last index, round and closed time, as they were then
    quiesced_peers: dict[ServerUuid, None] = field(default_factory=dict)  # agreed to quiesce
