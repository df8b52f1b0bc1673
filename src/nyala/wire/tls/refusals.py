"""Refusals in the audit log: a bounded number of lines for each caller and minute, and a count of the others.

So nobody fills the disk of the log with calls that are refused. A caller whose audited calls were refused too
often has to wait, since such a call has its lines before it is carried out. Used on the loop only.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from nyala.common.addresses import keep_newest
from nyala.common.errors import NyalaError, Throttled
from nyala.wire.tls.auditing import MAX_TEXT, Audit, note_or_log

WINDOW_S = 60.0
LINES_OF_CALLER = 20
LINES = 200
"""Lines of all callers in a window."""
OTHERS = "others"
CALLS_OF_CALLER = 120
"""Audited calls of a caller that may be refused in a window; above it further ones are not carried out."""
KEPT = 10_000
"""Users who logged in that are remembered, each at a host; the oldest are dropped."""


class Refusals:
    """Notes the refusals of one server.

    Args:
        audit: the log; None: nothing is noted.
        now_s: returns the time in seconds; by default that of the loop.
        lines_of_caller: lines of one caller in a window.
    """

    def __init__(
        self,
        audit: Audit | None,
        now_s: Callable[[], float] | None = None,
        lines_of_caller: int = LINES_OF_CALLER,
    ) -> None:
        self._audit = audit
        self._lines_of_caller = lines_of_caller
        self._now_s = now_s
        self._since_s = 0.0
        self._lines: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._suppressed: Counter[str] = Counter()
        self._known: dict[str, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    def counted_for(self, caller: str, user: str) -> str:
        """Return for whom an audited call counts if it is refused.

        A user who has logged in from a host before has a count of their own there: guesses of others at this
        host do not keep them out. Others have the count of the host, so that invented names have no more.

        Args:
            caller: who calls; of a login, the host that it comes from.
            user: who logs in; empty: the call is no login.
        """
        own = _at(user, caller)
        return own if own in self._known else caller

    def logged_in(self, caller: str, user: str) -> None:
        """Remember that a user has logged in from a host; arguments as those of `counted_for`."""
        if user:
            keep_newest(self._known, _at(user, caller), None, KEPT)

    def require_room(self, caller: str) -> None:
        """Check that an audited call of a caller may be carried out.

        Raises:
            Throttled: too many calls of the caller were refused in this minute.
        """
        if self._audit is None:
            return
        self._roll()
        if self._calls[caller] >= CALLS_OF_CALLER:
            self._suppressed[caller] += 1
            raise Throttled(
                f"{CALLS_OF_CALLER} calls of {caller} were refused within {WINDOW_S:g} s, so that further "
                "ones, which the audit log has to have, are refused too; see why, and wait a minute",
                {"retry_after_ms": f"{WINDOW_S * 1000:.0f}"},
            )

    def count(self, caller: str) -> None:
        """Count an audited call that was refused, and has its lines in the log."""
        self._roll()
        self._calls[caller] += 1

    def begin(self, caller: str, path: str, peer: str, err: NyalaError) -> None:
        """Note a refusal without waiting for it.

        Args:
            caller: as for `note`.
            path: as for `note`.
            peer: as for `note`.
            err: as for `note`.
        """
        if self._audit is not None:
            work = self.note(caller, path, peer, err)
            self._keep(asyncio.get_running_loop().create_task(work, name="audit"))

    async def note(self, caller: str, path: str, peer: str, err: NyalaError) -> None:
        """Note a refusal if there is room; it stands if the log cannot be written.

        Args:
            caller: who was refused.
            path: of the method.
            peer: address of the caller.
            err: the refusal.
        """
        if self._audit is None:
            return
        self._roll()
        if self._lines[caller] >= self._lines_of_caller or self._lines.total() >= LINES:
            known = caller in self._suppressed or len(self._suppressed) < LINES
            self._suppressed[caller if known else OTHERS] += 1
            return
        self._lines[caller] += 1
        why = err.message[:MAX_TEXT]
        await note_or_log(
            self._audit, "refused", method=path, who=caller, peer=peer, code=err.code, why=why
        )

    def _roll(self) -> None:
        """Begin a window if the last one is over; what was suppressed in that is noted."""
        loop = asyncio.get_running_loop()
        now = loop.time() if self._now_s is None else self._now_s()
        if now - self._since_s < WINDOW_S and (self._lines or self._calls):
            return
        suppressed, self._suppressed = self._suppressed, Counter()
        self._since_s, self._lines, self._calls = now, Counter(), Counter()
        if self._now_s is None:  # what is suppressed at the end is noted too
            loop.call_later(WINDOW_S, self._end, now)
        for caller, count in suppressed.items():
            self._note_count(caller, count)

    def _end(self, since_s: float) -> None:
        if self._since_s == since_s and self._suppressed:
            self._roll()

    def _note_count(self, caller: str, count: int) -> None:
        assert self._audit is not None, "nothing is suppressed without a log"
        work = note_or_log(
            self._audit, "suppressed", method="", who=caller, refusals=count, seconds=WINDOW_S
        )
        self._keep(asyncio.get_running_loop().create_task(work, name="audit"))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _at(user: str, caller: str) -> str:
    return f"{user[:MAX_TEXT]} at {caller[:MAX_TEXT]}" if user else ""
