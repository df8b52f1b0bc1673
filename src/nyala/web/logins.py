"""Logins of browsers: links for one login each, and the sessions that they begin. In memory of a server."""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable

from nyala.security.identity import PeerIdentity

LINK_S = 600
"""Time, in seconds, within which a link has to be used."""
SESSION_S = 12 * 3600
"""Length of a session, in seconds."""
LINKS, SESSIONS = 64, 256
"""Largest numbers kept; a new one replaces the oldest of the user who has most."""
LINKS_OF_USER, SESSIONS_OF_USER = 8, 16
"""Largest numbers of one user; a new one replaces the user's oldest."""


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
        self._make_room(self._links, user, LINKS, LINKS_OF_USER)
        self._links[_digest(secret)] = user, self._now() + LINK_S
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
        self._make_room(self._sessions, user, SESSIONS, SESSIONS_OF_USER)
        self._sessions[_digest(secret)] = user, self._now() + SESSION_S
        return secret

    def user(self, session: str) -> PeerIdentity | None:
        """Return the user of a session; None: it is unknown or over."""
        return self._valid(self._sessions, session)

    def _make_room(
        self,
        kept: dict[bytes, tuple[PeerIdentity, float]],
        user: PeerIdentity,
        limit: int,
        of_user: int,
    ) -> None:
        """Remove what is over, and without room the oldest of the user, or of the one who has most."""
        for secret in [s for s, (_, ends) in kept.items() if ends <= self._now()]:
            del kept[secret]
        owned = Counter(who.principal.name for who, _ in kept.values())
        loser = user.principal.name
        if owned[loser] < of_user:
            if len(kept) < limit:
                return
            loser = owned.most_common(1)[0][0]
        del kept[next(s for s, (who, _) in kept.items() if who.principal.name == loser)]

    def _valid(
        self, kept: dict[bytes, tuple[PeerIdentity, float]], secret: str
    ) -> PeerIdentity | None:
        user, ends = kept.get(_digest(secret), (None, 0.0))
        return user if self._now() < ends else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
