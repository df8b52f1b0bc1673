"""Election: the decisions of a candidate and of a leader, without I/O.

The driver (`candidate.py`) asks `next` for the next action, carries it out, and calls the method for its
result. Times are those of a monotonic clock, in microseconds; only differences of them count.

A log has a leader while its key `leader/<log>` exists. The establishing step appends an entry
and sets the key, on the condition that both are as the candidate has seen them for `timeout_us`. The id of
the entry is the epoch, and the version of the key, which the same step sets next, is `epoch + 1`. Each later
step of the leader has two conditions: the version of the key, and its own last id of the log.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """State of a candidate or leader."""

    LOOKING = "reads log and key"
    WATCHING = "waits for a time without changes"
    CHECKING = "reads log and key again"
    ESTABLISHING = "sends the establishing step"
    SETTLING = "reads whether its step took effect"
    BACK_OFF = "waits, since another one leads"
    YIELDING = "waits, so that another one is established after it"
    LEADING = "leads"


@dataclass(frozen=True, slots=True)
class Standing:
    """Log and key of an election, as they were read: the log first.

    Attributes:
        last: id of the last change of the log; 0: there is no such log.
        version: version of the key; 0: there is no leader.
        nonce: that of the leader, in the key.
    """

    last: int
    version: int
    nonce: bytes


@dataclass(slots=True)
class HeldLeadership:
    """Leadership of this process.

    Attributes:
        version: version of the key.
        last: id of the last change of the log.
        sent_us: time at which the last step that took effect was sent.
        unsettled_us: time at which a step with unknown outcome was sent.
    """

    version: int
    last: int
    sent_us: int
    unsettled_us: int | None = None

    @property
    def epoch(self) -> int:
        """Id of the establishing entry."""
        return self.version - 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Action: wait until a time, or until the key is deleted."""

    until_us: int


@dataclass(frozen=True, slots=True)
class Look:
    """Action: read the log's last id, then the key."""


@dataclass(frozen=True, slots=True)
class Establish:
    """Action: send the establishing step, on the condition of this standing."""

    seen: Standing


@dataclass(frozen=True, slots=True)
class Renew:
    """Action: send a step that changes nothing but the last id of the log."""


@dataclass(frozen=True, slots=True)
class Lose:
    """Action: report that this process does not lead any more, then call `dropped`."""

    reason: str


Action = Wait | Look | Establish | Renew | Lose


@dataclass(slots=True)
class Election:
    """A candidate, and leader, of one log.

    Args:
        nonce: of this incarnation of the process.
        timeout_us: time without changes of the log after which its leader may be replaced.
        back_off_us: longest pause of a candidate that found an active leader; above `timeout_us`.
        draw: returns a random integer between two.
    """

    nonce: bytes
    timeout_us: int
    back_off_us: int
    draw: Callable[[int, int], int]
    phase: Phase = Phase.LOOKING
    seen: Standing = Standing(0, 0, b"")
    until_us: int = 0
    tried_us: int | None = None
    leadership: HeldLeadership | None = None
    lost: str = ""
    freed: bool = False

    @property
    def window_us(self) -> int:
        """Time after a step was sent in which the leader acts: 3/4 of the timeout."""
        return self.timeout_us * 3 // 4

    def acts(self, now_us: int) -> bool:
        """Return whether this process leads and may act: no other one can have been established yet."""
        return (
            self.leadership is not None
            and not self.lost
            and now_us - self.leadership.sent_us < self.window_us
        )

    def next(self, now_us: int) -> Action:
        """Return the next action."""
        if self.phase is Phase.LEADING:
            return self._next_of_leader(now_us)
        if self.phase is Phase.ESTABLISHING:
            self.freed = False
            return Establish(self.seen)
        if self.phase in (Phase.WATCHING, Phase.BACK_OFF, Phase.YIELDING):
            if now_us < self.until_us:
                return Wait(self.until_us)
            self.phase = Phase.CHECKING if self.phase is Phase.WATCHING else Phase.LOOKING
        self.freed = False
        return Look()

    def _next_of_leader(self, now_us: int) -> Action:
        assert self.leadership is not None
        if not self.lost and not self.acts(now_us):
            self.lost = "no step took effect for 3/4 of the timeout"
        if self.lost:
            return Lose(self.lost)
        renew_us = self.leadership.sent_us + self.timeout_us // 3
        if self.leadership.unsettled_us is not None or now_us >= renew_us:
            return Renew()
        return Wait(renew_us)

    # ---- candidates --------------------------------------------------------------------------------

    def looked(self, now_us: int, standing: Standing) -> None:
        """Continue with what `Look` has read, which arrived at this time."""
        seen, new = self.seen, standing.version != self.seen.version
        match self.phase:
            case Phase.CHECKING if standing == seen:
                self.phase = Phase.ESTABLISHING
            case Phase.SETTLING if new and standing.nonce == self.nonce:
                assert self.tried_us is not None
                self._lead(now_us, self.tried_us, standing.version)
            case Phase.SETTLING if standing == seen:
                self.phase = Phase.ESTABLISHING  # both steps have one condition
            case Phase.LOOKING | Phase.CHECKING if not standing.version:  # its leader has resigned
                self.seen, self.phase = standing, Phase.ESTABLISHING
            case Phase.LOOKING:
                self.seen, self.until_us = standing, now_us + self.timeout_us
                self.phase = Phase.WATCHING
            case Phase.CHECKING:  # it has changed since the read before: perhaps right after it
                self._back_off(self.until_us - self.timeout_us)
            case _:
                self._back_off(now_us)

    def established(self, now_us: int, sent_us: int, version: int) -> None:
        """Lead, since the establishing step took effect.

        Args:
            now_us: present time.
            sent_us: time at which it was sent.
            version: version of the key.
        """
        self._lead(now_us, sent_us, version)

    def refused(self, now_us: int) -> None:
        """Continue after the establishing step was refused, perhaps because of an earlier try of its own."""
        if self.tried_us is None:
            self._back_off(now_us)
        else:
            self.phase = Phase.SETTLING

    def unanswered(self, sent_us: int) -> None:
        """Continue after an establishing step, sent at this time, whose outcome is unknown."""
        self.tried_us = sent_us if self.tried_us is None else self.tried_us
        self.phase = Phase.SETTLING

    def log_changed(self, now_us: int) -> None:
        """Continue after a change of the log that came since `seen`."""
        if self.phase is Phase.WATCHING:
            self._back_off(now_us)

    def key_deleted(self) -> None:
        """Continue after the leader has resigned: also if a read or a step of this process is under way."""
        self.freed = True
        if self.phase in (Phase.WATCHING, Phase.BACK_OFF):
            self.phase = Phase.LOOKING

    def _lead(self, now_us: int, sent_us: int, version: int) -> None:
        if now_us - sent_us >= self.window_us:  # too late to act; it has not acted yet
            self._back_off(now_us)
            return
        self.phase, self.tried_us = Phase.LEADING, None
        self.leadership, self.lost = HeldLeadership(version, version - 1, sent_us), ""

    def _back_off(self, since_us: int) -> None:
        """Pause, counted from this time, since which another one may have been active."""
        self.phase, self.tried_us, self.leadership = Phase.BACK_OFF, None, None
        self.until_us = since_us + self.draw(self.timeout_us + 1, self.back_off_us)
        if self.freed:  # since that read or step began
            self.phase = Phase.LOOKING

    # ---- leaders -----------------------------------------------------------------------------------

    def taken(self, sent_us: int, last: int) -> None:
        """Record that an own step, sent at this time, took effect; the log has this last id."""
        if self.leadership is not None:
            self.leadership.last, self.leadership.sent_us, self.leadership.unsettled_us = (
                last,
                sent_us,
                None,
            )

    def unsettled(self, sent_us: int) -> None:
        """Record that the outcome of an own step, sent at this time, is unknown, perhaps as that before."""
        if self.leadership is not None and self.leadership.unsettled_us is None:
            self.leadership.unsettled_us = sent_us  # others may count from the first

    def failed(self, *, key: bool, actual: int) -> bool:
        """Decide why a condition of an own step failed.

        Args:
            key: that on the key; else that on the log.
            actual: version or id that was found.

        Returns:
            True: the earlier step with unknown outcome took effect; False: the leadership is lost.
        """
        if self.leadership is None:
            return False
        if not key and self.leadership.unsettled_us is not None:
            self.taken(self.leadership.unsettled_us, actual)
            return True
        self.lost = (
            "another process was established"
            if key
            else "another writer has appended to the log of this leader"
        )
        return False

    def in_doubt(self) -> None:
        """Record that the outcome of an own step is not told: the log has to be read again."""
        self.lost = "the journal does not tell whether a step took effect"

    def dropped(self, now_us: int) -> None:
        """Be a candidate again, after `Lose`, or in order to resign."""
        self._back_off(now_us)
        self.phase, self.lost = Phase.YIELDING, ""
