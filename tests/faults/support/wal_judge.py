"""Checks a log across power failures: it has the appended records in order, up to some point.

No record reported durable, or found at an earlier start, lies after that point; the log is one
sequence, so no group may have more of it than another; nothing is ever called damaged.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = list[Any]


@dataclass
class Group:
    """State of one group that its records add up to."""

    hard_state: list[Any] | None = None
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: int = 0
    anchor: int = 0

    def take(self, record: Record) -> None:
        if len(record) == 3:
            self.hard_state = record[1:]
            return
        _, index, term, crc = record
        for replaced in range(index, self.last + 1):
            self.entries.pop(replaced, None)
        self.entries[index] = (term, crc)
        self.last = index

    def difference(self, found: list[Any] | None) -> str:
        """Return the differences of a recovered group as text, or nothing."""
        hard_state, entries, corrupt = found or [None, [], None]
        if corrupt:
            return f"is corrupt: {corrupt}"
        if hard_state != self.hard_state:
            return f"has the hard state {hard_state}, not {self.hard_state}"
        held = {index: (term, crc) for index, term, crc in entries}
        if max(held, default=0) != self.last:
            return f"ends at {max(held, default=0)}, not at {self.last}"
        lacking = [i for i in self.entries if i >= self.anchor and i not in held]
        wrong = [i for i in held if i in self.entries and held[i] != self.entries[i]]
        return f"lacks {lacking[:5]}, has otherwise {wrong[:5]}" if lacking or wrong else ""


class Judge:
    """Checks the notebooks of one log's incarnations, in order.

        Attributes:
            durable: slots that were reported durable.
            torn: number of starts that found a torn tail.
    lost: number of appended slots that no start has found; with syncs none of them was reported
                durable.
            lost_durable: of them, those that were reported durable.
            errors: incarnations in which a callback received an error.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self.durable = self.torn = self.lost = self.lost_durable = self.errors = 0
        self._sync = sync
        self._groups: dict[str, Group] = {}
        self._slots: list[tuple[int, list[Record]]] = []
        self._told: set[int] = set()

    def read(self, notebook: Path, counted: int) -> None:
        """Check one incarnation.

        Args:
            notebook: of the incarnation.
            counted: its bytes before the power failure; later reports of durability, by a process that
                outlives its disk, cannot occur on a machine without power.

        Raises:
            AssertionError: the log has violated its contract.
        """
        failed = False
        at = 0
        for line in notebook.read_text().splitlines():
            at += len(line) + 1
            kind, *rest = json.loads(line)
            if kind == "recovered":
                self._recovered(*rest)
            elif kind == "slot":
                self._slots.append((rest[0], rest[1]))
            elif kind == "durable":
                assert not failed, f"slot {rest[0]} was reported durable after an error"
                if at <= counted:
                    self._told.add(rest[0])
                    self.durable += 1
            elif kind == "anchor":
                self._of(rest[0]).anchor = rest[1]
            else:
                assert kind == "error", line
                failed = True
        self.errors += failed

    def _of(self, group: str) -> Group:
        return self._groups.setdefault(group, Group())

    def _recovered(self, found: dict[str, Any], damage: list[str], torn: bool) -> None:
        assert not damage, f"a torn tail was reported as damage: {damage}"
        self.torn += torn
        last_reported = max((n for n, _ in self._slots if n in self._told), default=0)
        waiting = [(n, r) for n, records in self._slots for r in records]
        if self._sync:
            while waiting and waiting[0][0] <= last_reported:
                self._take(waiting.pop(0)[1])
        first_difference = self._difference(found)
        while waiting and self._difference(found):
            self._take(waiting.pop(0)[1])
        assert not self._difference(found), (
            f"after slot {last_reported}, the last one reported durable: {first_difference}; after "
            f"all slots: {self._difference(found)}"
        )
        missing = {n for n, _ in waiting}
        self.lost += len(missing)
        self.lost_durable += len(missing & self._told)
        self._slots, self._told = [], set()

    def _take(self, record: Record) -> None:
        self._of(record[0]).take(record)

    def _difference(self, found: dict[str, Any]) -> str:
        for group in sorted({*found, *self._groups}):
            if text := self._of(group).difference(found.get(group)):
                return f"group {group[-2:]} {text}"
        return ""
