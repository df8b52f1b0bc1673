"""An operation that the leader of one tablet executes: the same bytes at each try, until it is answered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

from nyala.client.cluster.leader_search import LeaderSearch
from nyala.client.cluster.leader_watch import LeaderWatch, LedElsewhere
from nyala.client.cluster.tablet_cache import LOOKUP_TIMEOUT_MS, TabletCache, TabletLocation
from nyala.client.deadline import Attempts
from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    RangesChanged,
    Rejected,
    Retryable,
    SessionExpired,
    Throttled,
    TimedOut,
    may_have_arrived,
)

T = TypeVar("T")
TRY_TIMEOUT_MS = 4_000
"""Timeout of one try, in milliseconds; the caller's deadline covers all tries."""
THROTTLED_PAUSE_MS = 50
"""Pause after Throttled that names none, in milliseconds."""


class TabletReplaced(Exception):
    """The tablet was replaced by another one, whose location is known; writes to the old one are lost."""


class RequestHeader(Protocol):
    """Part of a request that the loop reads and changes.

    Attributes:
        tablet_id: tablet of the request.
        since: hybrid time before which the operation was not executed.
    """

    tablet_id: str
    since: int


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of errors.

    Attributes:
        late: no leader answered in time.
        unknown: consequence of an unknown outcome, and advice.
        no_effect: the operation had no effect, and advice.
        content: name of what is sent: rows, step.
    """

    late: str
    unknown: str
    no_effect: str
    content: str


@dataclass(frozen=True, slots=True, eq=False)
class LeaderOperation(Generic[T]):
    """One operation. Runs on the client's loop.

    Attributes:
        locations: updates the leader.
        tablet: tablet of the operation; updated in place.
        header: header of each try.
        attempt: sends the operation to an address, with a timeout in milliseconds.
        look_up: looks the tablet up again, with a timeout in milliseconds; raises RangesChanged or NotFound
            if there is none.
        look_again: looks the tablet up while a server is silent; may raise the same.
        texts: texts of errors.
        exclusive: no other process sends the same operation.
        try_ms: timeout of one try, in milliseconds.
    """

    locations: TabletCache
    tablet: TabletLocation
    header: RequestHeader
    attempt: Callable[[str, int], Awaitable[T]]
    look_up: Callable[[int], Awaitable[None]]
    look_again: Callable[[], Awaitable[None]]
    texts: Texts
    exclusive: bool
    try_ms: int = TRY_TIMEOUT_MS

    async def send(self, attempts: Attempts) -> T:
        """Send the operation until it is answered; `attempts` has the deadline and the pauses between tries.

        Raises:
            RangesChanged, NotFound: the tablet is gone, and the operation had no effect.
            TabletReplaced: `tablet` is another one by now; send a new operation.
            OutcomeUnknown: some try was not answered, and may have taken effect.
            SessionExpired: as OutcomeUnknown.
            TimedOut: no leader took it in time; it had no effect.
            Rejected: it had no effect.
        """
        tablet, unknown = self.tablet, False
        search = LeaderSearch(self.locations, tablet)
        watch = LeaderWatch(attempts.env, tablet, self.look_again)
        while True:
            wait_ms = 0
            for address in tablet.addresses():
                left_ms = attempts.left_ms()
                if left_ms <= 0:
                    break
                try:
                    found = await watch.answer(
                        address, self.attempt(address, min(left_ms, self.try_ms))
                    )
                except LedElsewhere as err:
                    unknown = True
                    search.failed(address, err, left_ms)
                    break
                except RangesChanged:
                    raise  # decided in the tablet's log: no try has any effect
                except NotLeader as err:
                    if search.refused(address, err):
                        break
                except Throttled as err:
                    search.delayed(err)
                    wait_ms = int(err.details.get("retry_after_ms", THROTTLED_PAUSE_MS))
                    break
                except (OutcomeUnknown, Retryable) as err:
                    unknown |= may_have_arrived(err)
                    search.failed(address, err, left_ms)
                except SessionExpired as err:
                    if unknown or not self.exclusive or not _restart_later(self.header, err):
                        raise
                    search.delayed(err)
                    break
                except InvalidArgument as err:
                    if unknown or not self.exclusive or not _restart_earlier(self.header, err):
                        self._refuse(err, unknown=unknown)
                    search.delayed(err)
                    break
                except Rejected as err:
                    self._refuse(err, unknown=unknown)
                else:
                    tablet.leader = address
                    return found
            else:
                search.end_round()
            if not await attempts.pause(wait_ms):
                raise self._late(search.reason, unknown=unknown)
            await self._relocate(attempts, unknown=unknown)
            if tablet.id != self.header.tablet_id:
                raise TabletReplaced

    async def _relocate(self, attempts: Attempts, *, unknown: bool) -> None:
        """Look up the tablet if its leader is not known; a failure is ignored, as the loop tries again."""
        if self.tablet.leader:
            return
        try:
            await self.look_up(max(1, min(LOOKUP_TIMEOUT_MS, attempts.left_ms())))
        except (RangesChanged, NotFound) as gone:
            self._refuse(gone, unknown=unknown)
        except Retryable:
            return

    def _refuse(self, err: NyalaError, *, unknown: bool) -> NoReturn:
        """Raise a refusal, unless an earlier try may have taken effect all the same."""
        if not unknown:
            raise err
        raise OutcomeUnknown(
            f"{err.message}; an earlier try of the same {self.texts.content} was not answered, "
            "and may yet take effect"
        ) from err

    def _late(self, last: str, *, unknown: bool) -> NyalaError:
        text = f"{self.texts.late}; at last: {last}. "
        if unknown:
            return OutcomeUnknown(text + self.texts.unknown)
        return TimedOut(text + self.texts.no_effect)


def _restart_later(header: RequestHeader, err: SessionExpired) -> bool:
    """Advance an operation's `since`; return whether it may be sent again.

    A tablet that has forgotten clients refuses operations that may be retries of theirs. An operation that
    was never sent before is no retry.
    """
    until = int(err.details.get("forgotten_until", 0))
    if until < header.since:
        return False
    header.since = until + 1
    return True


def _restart_earlier(header: RequestHeader, err: InvalidArgument) -> bool:
    """Lower an operation's `since`; return whether it may be sent again.

    A leader refuses one that its clock has not nearly reached. A client that saw the time of a server with a
    wrong clock could write nothing otherwise, until that time.
    """
    latest = int(err.details.get("latest_since", 0))
    if not 0 < latest < header.since:
        return False
    header.since = latest
    return True
