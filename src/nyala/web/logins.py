"""Logins of browsers: links for one login each, and the sessions that they begin. In memory of a server."""

import hashlib
import secrets
import time
from collections.abc import Callable

from nyala.common.addresses import keep_newest
from nyala.security.identity import PeerIdentity

LINK_S = 600
"""Time, in seconds, within which a link has to be used."""
SESSION_S = 12 * 3600
"""Length of a session, in seconds."""
LINKS, SESSIONS = 64, 256
"""Largest numbers kept; a new one replaces the oldest."""


class Logins:
    """Links and sessions of a server. Only hashes of their secrets are kept.

    Args:
        now: monotonic time, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[bytes, tuple[PeerIdentity, float]] = {}
        self._sessions: dict[bytes, tuple[PeerIdentity, float]] = {}

    def link(self, user: PeerIdentity) -> str:
        """Return the secret of a new link, for one login as the holder of a certificate."""
        secret = secrets.token_urlsafe(32)
        keep_newest(self._links, _digest(secret), (user, self._now() + LINK_S), LINKS)
        return secret

    def begin(self, link: str) -> tuple[str, PeerIdentity] | None:
        """Begin a session; return its secret and its user. None: the link is unknown, used or too old.

        Args:
            link: secret of a link, which is used up.
        """
        user = self._valid(self._links, link)
        self._links.pop(_digest(link), None)
        return None if user is None else (self.session(user), user)

    def session(self, user: PeerIdentity) -> str:
        """Begin a session of a user who has proved who it is; return its secret."""
        secret = secrets.token_urlsafe(32)
        keep_newest(self._sessions, _digest(secret), (user, self._now() + SESSION_S), SESSIONS)
        return secret

    def user(self, session: str) -> PeerIdentity | None:
        """Return the user of a session; None: it is unknown or over."""
        return self._valid(self._sessions, session)

    def _valid(
        self, kept: dict[bytes, tuple[PeerIdentity, float]], secret: str
    ) -> PeerIdentity | None:
        user, ends = kept.get(_digest(secret), (None, 0.0))
        return user if self._now() < ends else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
