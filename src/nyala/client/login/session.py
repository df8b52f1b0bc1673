"""Login of a process that has a password: its certificate is private to it, and renewed while it runs."""

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from nyala.client.login import exchange, store, trust
from nyala.client.login.exchange import Issued, Proof
from nyala.common.errors import InvalidArgument, NyalaError, Rejected
from nyala.env.clock import SystemClock
from nyala.security import known
from nyala.security.accounts.attempts import RETRY_AFTER
from nyala.security.files import CA_VARIABLE, LOGIN_VARIABLE, CredentialFiles
from nyala.security.identity import identity_of_pem

log = logging.getLogger("nyala.client")
T = TypeVar("T")

LONGEST_PAUSE_S = 60.0
"""Longest pause between two looks at the time, or two tries to renew, in seconds."""

_sessions: dict[tuple[frozenset[str], str], "LoginSession"] = {}
_lock = threading.Lock()


class LoginSession:
    """Login of one user at one cluster, in a folder of mode 0700 that is removed when the process ends.

    Args:
        proof: of the user; kept in memory, for renewals.
        log_in: exchanges it for a certificate.

    Attributes:
        proof: as given.
        files: the files of the certificate, which are replaced when it is renewed.

    Raises:
        NyalaError: the login failed.
    """

    def __init__(self, proof: Proof, log_in: Callable[[Proof], Issued]) -> None:
        self.proof = proof
        self._log_in = log_in
        self._clock, self._never = SystemClock(), threading.Event()
        issued = log_in(proof)
        self._folder = Path(tempfile.mkdtemp(prefix="nyala-login-"))  # mode 0700
        atexit.register(self._remove, os.getpid())
        self.files = store.write(self._folder, issued)
        self._renewal_s = identity_of_pem(issued.certificate).renewal_s
        threading.Thread(target=self._renew, name="nyala-login", daemon=True).start()

    def renew_if_due(self, now_s: float) -> None:
        """Log in again if two thirds of the certificate's life have passed.

        Args:
            now_s: the time, in seconds since the epoch.

        Raises:
            NyalaError: the login failed.
        """
        if now_s < self._renewal_s:
            return
        issued = self._log_in(self.proof)
        store.write(self._folder, issued)
        self._renewal_s = identity_of_pem(issued.certificate).renewal_s

    def look(self, now_s: float) -> float | None:
        """Renew the certificate if that is due; return the seconds until the next look; None: it is given up.

        Args:
            now_s: the time, in seconds since the epoch.
        """
        try:
            self.renew_if_due(now_s)
        except (NyalaError, OSError) as err:
            # A further try counts as a wrong password, unless it has to wait because others guess.
            if isinstance(err, Rejected) and RETRY_AFTER not in err.details:
                log.error("the login of %s is not renewed: %s", self.proof.user, err.message)
                return None
            log.warning("the login of %s is not renewed yet: %s", self.proof.user, err)
        return min(LONGEST_PAUSE_S, max(1.0, (self._renewal_s - now_s) / 2))

    def _renew(self) -> None:
        pause_s: float | None = 1.0
        while pause_s is not None:
            self._never.wait(pause_s)
            pause_s = self.look(self._clock.wall_us() / 1_000_000)

    def _remove(self, owner: int) -> None:
        if os.getpid() == owner:  # not a process that was forked from it
            shutil.rmtree(self._folder, ignore_errors=True)


def session_files(
    masters: Sequence[str], user: str, password: str, ca: str = "", login: str = ""
) -> CredentialFiles:
    """Return the files of a login of this process, which is made on the first call.

    Args:
        masters: public addresses of masters.
        user: name of the account.
        password: its password.
        ca: file with the certificate of the cluster's authority; empty: that of NYALA_CA, or a noted one.
        login: join addresses of masters, "host:port,..."; empty: those of NYALA_LOGIN, or those known.

    Raises:
        InvalidArgument: the authority is not known, so that the password is not sent.
        Unauthenticated: unknown user or wrong password, or a server of another authority.
        Forbidden: the account is disabled.
        Unavailable: no master answers at its join address.
    """
    proof, key = Proof(user, password), (frozenset(masters), user)
    with _lock:
        found = _sessions.get(key)
        if found is None or found.proof != proof:
            trusted = _trusted(masters, ca)
            given = login or os.environ.get(LOGIN_VARIABLE, "")
            addresses = store.login_addresses(masters, given)
            found = LoginSession(proof, lambda p: _run(exchange.log_in(addresses, trusted, p)))
            _sessions[key] = found
        return found.files


def login_of(masters: Sequence[str]) -> CredentialFiles | None:
    """Return the files of a login of this process at a cluster; None: there is none.

    Args:
        masters: public addresses of masters; one of those that the login was made with is enough.
    """
    named = {address.strip() for address in masters}
    with _lock:
        found = (made for (known, _), made in _sessions.items() if known & named)
        first = next(found, None)
        return None if first is None else first.files


def _trusted(masters: Sequence[str], ca: str) -> bytes:
    noted = known.noted(masters)
    file = ca or os.environ.get(CA_VARIABLE, "") or (noted.ca if noted else "")
    if not file:
        raise InvalidArgument(
            "the password was not sent, because the authority of the cluster is not known here: name its "
            f"ca.crt (ca=, or {CA_VARIABLE}), or log in once with nyala login"
        )
    return trust.of_file(file)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: the caller may have a running loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
