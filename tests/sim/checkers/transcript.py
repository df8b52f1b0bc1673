"""Readable transcript of the events before a failure: messages, disk operations, faults marked.

A failed run is repeated with a `Recorder`; ordinary runs have no overhead. Lines are by virtual time:

      12.345678  core-1 -> core-2      entries 3.18..3.20 after 3.17, commit 3.16
    ! 12.400000  power_cut             core-1
"""

import re
from collections import deque
from typing import Any

from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    PeerBatch,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.sim.faults.plan import KINDS

KEEP = 20_000
FAULTS = frozenset(event for events in KINDS.values() for event in events) - {"peer_lost"}
MARKED = FAULTS | {
    "replica_failed", "start_refused", "cut", "heal", "healed", "resume", "disk_fills", "start",
    "disk_has_room", "peer_cut",
}  # fmt: skip
QUIET = {
    "peer_sent", "peer_lost", "peer_doubled", "call", "call_doubled", "answer", "call_refused", "peer_cut",
    "call_lost", "answer_lost", "call_cut", "answer_cut", "call_timed_out", "stream", "straggler",
}  # fmt: skip
"""Kinds of events that are not shown: messages are shown by content, calls by the clients' operations."""
_CEILING = re.compile(r"/(ceiling|clock)(\.tmp)?\b")
"""Name of the file of the hybrid clock's ceiling, whose frequent writes are not shown."""
_KEY = re.compile(r"history of key (\d+)")
_GROUP = re.compile(r"\b[0-9a-f]{32}\b")


class Recorder:
    """Records the last events before a time.

    Args:
        until_s: virtual time after which nothing is recorded.
    """

    def __init__(self, until_s: float = float("inf")) -> None:
        self._until_us = until_s * 1e6
        self._events: deque[tuple[int, str, Any]] = deque(maxlen=KEEP)
        self._names: dict[str, str] = {}

    def note(self, at_us: int, kind: str, text: str) -> None:
        """Record one event."""
        if at_us <= self._until_us and kind not in QUIET and not _CEILING.search(text):
            self._events.append((at_us, kind, text))

    def sent(self, at_us: int, name: str, address: str, batch: PeerBatch, copies: int) -> None:
        """Record a sent batch."""
        self._names[batch.sender] = name
        self._names[batch.to] = address.partition(":")[0]
        if at_us <= self._until_us and batch.messages:
            self._events.append((at_us, "sent", (batch, copies)))

    def show(self, lines: int, failure: str) -> str:
        """Return the last lines about the groups and the key of a failure; all lines if it names none."""
        named = set(_GROUP.findall(failure))
        key = _KEY.search(failure)
        of_key = None if key is None else f"key {key[1]}:"
        several = len({g for _, k, w in self._events if k == "sent" for g, _ in w[0].messages}) > 1
        shown: deque[str] = deque(maxlen=lines)
        last_text: dict[tuple[str, str, str], str] = {}
        for at_us, kind, what in self._events:
            if kind == "sent":
                batch, copies = what
                for group, message in batch.messages:
                    if named and group not in named:
                        continue
                    text = self._words(message)
                    way = (batch.sender, batch.to, group)
                    if last_text.get(way) == text and "entries" not in text:
                        continue  # unchanged since the last line
                    last_text[way] = text
                    shown.append(
                        self._line(
                            at_us, batch, group if several and len(named) != 1 else "", text, copies
                        )
                    )
            elif of_key is not None and what.startswith("key ") and not what.startswith(of_key):
                continue
            elif not named or not (groups := set(_GROUP.findall(str(what)))) or groups & named:
                mark = "!" if kind in MARKED else " "
                shown.append(f"{mark} {at_us / 1e6:11.6f}  {kind:<22} {self._named(what)}")
        return "\n".join(shown)

    def _line(self, at_us: int, batch: PeerBatch, group: str, text: str, copies: int) -> str:
        way = f"{self._name(batch.sender)} -> {self._name(batch.to)}"
        mark = ("  [lost]", "", "  [doubled]")[copies]
        of = f"[{group[:6]}] " if group else ""
        return f"{'  ' if copies == 1 else '! '}{at_us / 1e6:11.6f}  {way:<22} {of}{text}{mark}"

    def _named(self, text: object) -> str:
        return _GROUP.sub(lambda found: self._names.get(found[0], found[0][:6]), str(text))

    def _name(self, uuid: str) -> str:
        return self._names.get(uuid, uuid[:6])

    def _words(self, message: AnyMessage) -> str:
        term = f"term {message.term}"
        if isinstance(message, AppendEntries):
            if message.entries:
                what = f"{term}: entries {_span(message.entries)} after {message.previous}"
                return f"{what}, commit {message.commit}{_round(message.round)}"
            what = f"heartbeat {term}, commit {message.commit}{_round(message.round)}"
            return what
        if isinstance(message, AppendReply):
            if not message.success:
                return f"{term}: refused, mine at or below is {message.hint}"
            head = "heartbeat answered" if not message.match else "durable"
            return f"{head} up to {message.match}, {term}{_round(message.round)}"
        if isinstance(message, RequestVote):
            how = ("would you vote for me" if message.pre else "vote for me") + (
                ", ordered by the leader" if message.override else ""
            )
            return f"{term}: {how}? my log ends at {message.last}"
        if isinstance(message, VoteReply):
            word = "yes" if message.granted else "no"
            return f"{term}: {word}{', I would' if message.pre and message.granted else ''}"
        if isinstance(message, TimeoutNow):
            return f"{term}: stand for election now"
        return f"{term}: {type(message).__name__}"


def _round(number: int) -> str:
    return f", read round {number}" if number else ""


def _span(entries: tuple[Entry, ...]) -> str:
    first, last = entries[0], entries[-1]
    span = f"{first.id}" if first is last else f"{first.id}..{last.id}"
    odd = [f"{e.id} {e.kind.name}" for e in entries if e.kind is not EntryKind.OPERATION]
    return f"{span} ({', '.join(odd)})" if odd else span
