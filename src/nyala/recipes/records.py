"""Records of an election: the settings of a candidate, and what the journal holds about a leader."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.client.journal.builder import StepParts
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.client.journal.items import Key
from nyala.common.errors import Corrupt, InvalidArgument
from nyala.recipes.election import Standing

ALIVE = b"leader_alive "
"""Beginning of the entry by which a leader is established; JSON follows."""
KEYS = "leader/"
"""Beginning of the names of the keys that name leaders; the name of the log follows."""
MAX_NUMBER = 10**18 - 1
_NUMBER = re.compile(rb"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Settings of a candidate.

    Attributes:
        log: name of the log that its leader writes.
        holder: name of this process.
        locator: where it serves clients.
        timeout_ms: time without changes of the log after which its leader may be replaced.
        back_off_ms: longest pause of a candidate that found an active leader.
    """

    log: str
    holder: str
    locator: str
    timeout_ms: int
    back_off_ms: int

    @property
    def key(self) -> str:
        """Name of the key that names the leader."""
        return KEYS + self.log

    def record(self, nonce: str) -> bytes:
        """Return the value of the key, and of the entry, that establishes this candidate."""
        fields = {"holder": self.holder, "locator": self.locator, "nonce": nonce}
        return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """A leader, as the journal names it.

    Attributes:
        epoch: id of the entry that established it; grows with each leader.
        holder: name of its process.
        locator: where it serves clients.
    """

    epoch: int
    holder: str
    locator: str


def standing_of(last: int, key: Key | None) -> Standing:
    """Return log and key, as they were read."""
    if key is None:
        return Standing(last, 0, b"")
    return Standing(last, key.version, str(_parsed(key.value).get("nonce", "")).encode())


def _parsed(value: bytes | None) -> dict[str, str]:
    try:
        found = json.loads(value or b"{}")
    except (ValueError, RecursionError):  # of another program
        return {}
    return found if isinstance(found, dict) else {}


def number_in(key: Key) -> int:
    """Return the number that a key has, in decimal digits.

    Raises:
        Corrupt: it has another value, which another program has set.
    """
    value = bytes(key.value or b"")
    if not _NUMBER.fullmatch(value):
        raise Corrupt(
            f"key {key.name!r} has the value {value[:40]!r}, which is no number from 1 to {MAX_NUMBER}; "
            "another program has set it: use another name, or set the key right"
        )
    return int(value)


def leader_info(key: Key | None) -> LeaderInfo | None:
    """Return the leader that a key names, if any."""
    if key is None or key.value is None:
        return None
    found = _parsed(key.value)
    return LeaderInfo(key.version - 1, str(found.get("holder", "")), str(found.get("locator", "")))


INTENT, DONE = b"intent", b"done"
"""First words of the entries of operations; the name of the kind and the payload follow."""


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """An entry of an operation.

    Attributes:
        state: INTENT or DONE.
        kind: name of the kind.
        payload: of the intent, or of a result.
    """

    state: bytes
    kind: str
    payload: bytes

    def encode(self) -> bytes:
        """Return the data of the entry."""
        return b"%s %s %s" % (self.state, self.kind.encode(), self.payload)


def operation_record(data: bytes) -> OperationRecord | None:
    """Return the record of an entry; None: it is none of an operation."""
    parts = data.split(b" ", 2)
    if len(parts) != 3 or parts[0] not in (INTENT, DONE):
        return None
    return OperationRecord(parts[0], parts[1].decode(errors="replace"), parts[2])


def names_of(found: Iterable[str]) -> tuple[str, ...]:
    """Return names of objects, as a method of an operation returns them.

    Raises:
        InvalidArgument: it returned something else.
    """
    names = None if isinstance(found, str) else tuple(found)
    if names is None or not all(isinstance(one, str) for one in names):
        raise InvalidArgument(
            f"objects() or obsolete() of an operation returned {found!r}; return names of objects as a list "
            "of str, for instance [name]"
        )
    return names


def payload_of(kind: str, found: Any) -> bytes:
    """Return a payload, as `compute` of an operation returns it.

    Args:
        kind: name of its kind.
        found: what it returned.

    Raises:
        InvalidArgument: it returned no bytes.
    """
    if not isinstance(found, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"compute() of {kind!r} returned a {type(found).__name__}, not bytes; nothing took effect. "
            "Encode the payload"
        )
    return bytes(found)


def step_of(
    journal: JournalCoroutines, log_name: str, entries: Sequence[bytes], stale: Sequence[int]
) -> StepParts:
    """Return the step that appends entries, or invalidates alone.

    Args:
        journal: journal of the log.
        log_name: name of the log.
        entries: data of the entries.
        stale: ids that become invalid in the same step.
    """
    step = journal.builder()
    for number, data in enumerate(entries):
        step.append(log_name, data, () if number else stale)
    if not entries:
        step.invalidate(log_name, stale)
    return step
