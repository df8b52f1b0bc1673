"""Credentials of one process: the certificate authority that it accepts, its own certificate, its key.

They are three PEM files, which are read again when they change, so that a certificate is renewed by replacing
its files. Connections that are open stay open.
"""

import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security.files import CredentialFiles
from nyala.security.identity import PeerIdentity
from nyala.security.principal import Principal
from nyala.security.revocation import Revocations
from nyala.security.tables.grants import Grants

PUBLIC_PROTOCOL = "h2"
"""Protocol (ALPN) of public ports. gRPC closes connections that do not offer it; other ports choose none."""


@dataclass(frozen=True, slots=True)
class Pem:
    """Contents of the files, as PEM."""

    ca: bytes
    cert: bytes
    key: bytes


class Credentials:
    """Credentials of one process.

    Args:
        files: where they are.
        now_s: returns the time, in seconds since the epoch.

    Attributes:
        files: as given.
        pem: their contents.
        principal: who this process is.
        version: increases when the files were read again.
        retirements: increases when an authority that was trusted is missing then.
        revocations: revoked certificates, which no port of this process accepts.
        grants: what is granted to users on tables.

    Raises:
        InvalidArgument: a file is missing, cannot be read, is expired, or they do not belong together.
    """

    def __init__(self, files: CredentialFiles, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self.files = files
        self.version = self.retirements = 0
        self.revocations = Revocations()
        self.grants = Grants()
        self._lock = threading.Lock()  # gRPC asks in threads of its own
        self._state = self._stat()
        self.pem, self.principal = read_files(files)
        self._client, self._newest = self._contexts(self.pem)
        self._server, self._web = _context(server=True), _context(server=True)
        self._web.verify_mode = ssl.CERT_OPTIONAL
        self._join = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._join.minimum_version = ssl.TLSVersion.TLSv1_3
        for front in (self._server, self._web, self._join):
            front.load_cert_chain(files.cert, files.key)
            front.sni_callback = self._use_newest

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether this was done.

        Files that do not belong together, as in the middle of a replacement, are not used. From any thread.
        """
        with self._lock:
            now = self._stat()
            if now == self._state:
                return False
            try:
                pem, principal = read_files(self.files)
                client, newest = self._contexts(pem)
            except (InvalidArgument, OSError):
                return False  # asked for again with the next connection; ssl.SSLError is an OSError
            if self._stat() != now:
                return False  # replaced meanwhile: contexts and `pem` may be of different files
            self.retirements += _has_fewer(pem.ca, self.pem.ca)
            self._state, self.pem, self.principal = now, pem, principal
            self._client, self._newest = client, newest
            self.version += 1
            return True

    def check(self, identity: PeerIdentity) -> None:
        """Check that a certificate, which was verified when its connection was made, is still valid.

        Raises:
            Unauthenticated: it has expired since, or was revoked.
        """
        self.revocations.check(identity)
        if self._now_s() >= identity.ends_s:
            raise Unauthenticated(
                f"the certificate of {identity.principal} (serial {identity.serial:x}) has expired; log in "
                "again (nyala login), or get a new one (nyala cert user)"
            )

    def check_authority(self, identity: PeerIdentity) -> None:
        """Check that an authority that is trusted has issued a certificate, once another one was retired.

        TLS has verified it when its connection was made, which may be open since before.

        Raises:
            Unauthenticated: none has.
        """
        if not self.retirements or not identity.pem:
            return
        from nyala.security.verify import is_issued  # loaded already, with the files

        if not is_issued(self.pem.ca, identity.pem):
            raise Unauthenticated(
                f"the certificate of {identity.principal} (serial {identity.serial:x}) is of a certificate "
                "authority that was retired; get one of the present authority (nyala login, nyala cert user)"
            )

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to servers; the name of the host is verified."""
        self.refresh()
        return self._client

    def public_context(self) -> ssl.SSLContext:
        """Return the TLS context for a connection to a public port that is not made by gRPC."""
        self.refresh()
        made, _ = self._contexts(self.pem)
        made.set_alpn_protocols([PUBLIC_PROTOCOL])
        return made

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections of clients, which need a certificate."""
        self.refresh()
        return self._server

    def web_context(self) -> ssl.SSLContext:
        """Return the TLS context of a web port, whose clients may have no certificate, as browsers."""
        self.refresh()
        return self._web

    def join_context(self) -> ssl.SSLContext:
        """Return the TLS context of the join port, whose callers have no certificate yet."""
        self.refresh()
        return self._join

    @property
    def hosts(self) -> frozenset[str]:
        """Names and addresses that the certificate carries, in lower case: those of a server."""
        from cryptography import x509

        from nyala.security.verify import hosts_of

        found = x509.load_pem_x509_certificate(self.pem.cert)
        return frozenset(h.lower() for h in hosts_of(found))

    def _contexts(self, pem: Pem) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return contexts of a client and of a server for new connections.

        A context never forgets an authority, and one in use must not change in another thread. So each
        reading makes new ones. Those that listeners have refer to the newest at each handshake.
        """
        made = _context(server=False), _context(server=True)
        for context in made:
            context.load_verify_locations(cadata=pem.ca.decode())
            context.load_cert_chain(self.files.cert, self.files.key)
        return made

    def _use_newest(
        self, connection: ssl.SSLObject, host: str | None, context: ssl.SSLContext
    ) -> None:
        """Continue a handshake with the newest files; called for each, also without a host's name."""
        connection.context = self._newest

    def _stat(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self.files.ca, self.files.cert, self.files.key):
            try:
                state = os.stat(path)
                found.append((state.st_ino, state.st_mtime_ns, state.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def _context(server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    if server:
        made.num_tickets = 0  # a session that is resumed would not be verified again
    return made


def _has_fewer(ca: bytes, before: bytes) -> bool:
    """As `verify.has_fewer`."""
    from nyala.security.verify import has_fewer

    return has_fewer(ca, before)


def read_files(files: CredentialFiles) -> tuple[Pem, Principal]:
    """Return the contents of the files, and who they are of; raises as `Credentials`."""
    from nyala.security.verify import read  # slow to import, and most processes have no credentials

    return read(files)
