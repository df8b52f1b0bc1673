"""Bound on failed logins, for each user and each host: after some failures, the next has to wait.

A user who has logged in from a host before has a bound of their own there: failures from other hosts, or of
other users of this host, do not keep them out. Others from hosts with few failures share a bound of their own
while the user has to wait, so that a guesser at one host does not keep a first login from another one out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.addresses import keep_newest
from nyala.common.errors import Unauthenticated
from nyala.security.identity import CALLER

FREE_OF_USER, FREE_OF_HOST = 5, 20
"""Failures before a user, or a host, has to wait. A host with fewer than the former has few."""
MOST_WAIT_S = 60
"""Longest wait after a failure, in seconds; it begins at one second and doubles."""
FORGOTTEN_S = 900
"""Time without a login after which failures are forgotten, in seconds."""
Counted = tuple[tuple[str, str], ...]
"""Bounds by which a login was counted: kind and name of each."""
KEPT = 10_000
"""Users, and hosts, that are remembered; the oldest of the same kind are dropped."""
_KEY_LENGTH = 128
_KINDS = ("user", "host", "known", "few")
RETRY_AFTER = "retry_after_ms"
"""Name of the detail of a refusal with the time to wait, by which it differs from a wrong password."""


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last_us: int
    allowed_us: int


def host_seen(host: str) -> str:
    """Return what to call a host from which a user logs in, for the bound on failures.

    A server that passes logins on may name any host. So failures count for the host at this server only.

    Args:
        host: as the server that calls names it.
    """
    caller = CALLER.get()
    return host if caller is None else f"{caller.principal.name} {host}"


class LoginAttempts:
    """Failed logins of users and from hosts. In memory of one process; on its loop only.

    A login counts as failed from its beginning, so that many at once are bounded too. The bound of a user
    holds for names without an account as well, and thus does not show whether there is one.

    After a login, the user is known at its host: from there only failures of this user at this host count,
    with the bound of a user.

    While a user has to wait, logins from all hosts with few failures have one further bound together. So
    guessers, however many hosts they have, get twice the guesses at most, and those with one host no more.

    Args:
        now_us: monotonic time in microseconds.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._failed: dict[str, dict[str, _Failures]] = {k: {} for k in _KINDS}

    def begin(self, user: str, host: str) -> Counted:
        """Count a login, before anything is computed for it.

        Args:
            user: name that the caller gives.
            host: where the caller is, as `host_seen` names it.

        Returns:
            What it was counted by.

        Raises:
            Unauthenticated: it is too early; the message says how long to wait. details: `retry_after_ms`.
        """
        now_us = self._now_us()
        keys = self._bounds(user, host, now_us)
        until_us = max(self._of(key, now_us).allowed_us for key in keys)
        if now_us < until_us:
            wait_s = -(-(until_us - now_us) // 1_000_000)
            raise Unauthenticated(
                f"too many failed logins of this user, or from this host: wait {wait_s} s, and log in again",
                {RETRY_AFTER: f"{wait_s * 1000}"},
            )
        for key, free in keys.items():
            count = self._of(key, now_us).count + 1
            wait_s = 0 if count < free else min(MOST_WAIT_S, 1 << min(count - free, 6))
            failures = _Failures(count, now_us, now_us + wait_s * 1_000_000)
            keep_newest(self._failed[key[0]], key[1], failures, KEPT)
        return tuple(keys)

    def succeeded(self, user: str, host: str) -> None:
        """Forget the failures of a user who has logged in, and is known at this host now."""
        for kind in ("user", "few"):
            self._failed[kind].pop(user[:_KEY_LENGTH], None)
        known = _known(user, host)
        if known not in self._failed["known"]:
            self._withdraw(("host", host[:_KEY_LENGTH]))
        keep_newest(self._failed["known"], known, _Failures(0, self._now_us(), 0), KEPT)

    def withdraw(self, counted: Counted) -> None:
        """Forget a login that has not failed for its user, as when a file of the server is malformed.

        Args:
            counted: what `begin` returned.
        """
        for key in counted:
            self._withdraw(key)

    def _withdraw(self, key: tuple[str, str]) -> None:
        kind, name = key
        known = self._failed[kind].get(name)
        if known is not None:
            self._failed[kind][name] = _Failures(known.count - 1, known.last_us, 0)

    def _bounds(self, user: str, host: str, now_us: int) -> dict[tuple[str, str], int]:
        """Return the keys of a login, with the failures after which each has to wait."""
        known = _known(user, host)
        if known in self._failed["known"]:
            return {("known", known): FREE_OF_USER}
        of_user, of_host = ("user", user[:_KEY_LENGTH]), ("host", host[:_KEY_LENGTH])
        waits = now_us < self._of(of_user, now_us).allowed_us
        if waits and self._of(of_host, now_us).count < FREE_OF_USER:
            of_user = "few", of_user[1]
        return {of_user: FREE_OF_USER, of_host: FREE_OF_HOST}

    def _of(self, key: tuple[str, str], now_us: int) -> _Failures:
        found = self._failed[key[0]].get(key[1])
        if found is None or now_us - found.last_us > FORGOTTEN_S * 1_000_000:
            return _Failures(0, now_us, 0)
        return found


def _known(user: str, host: str) -> str:
    """Return the name of a user at a host; no name of an account has a space."""
    return f"{user[:_KEY_LENGTH]} {host[:_KEY_LENGTH]}"
