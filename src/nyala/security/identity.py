"""Identity of the other end of a connection: the principal, serial number and times of its certificate."""

import contextvars
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nyala.common.errors import Unauthenticated
from nyala.security.principal import AccessRole, Principal, principal_of

BACKDATED_S = 300
"""Certificates are valid from this time before they are issued, in seconds, for clocks that differ."""
KEPT = 4_096
"""Certificates whose identities are kept, so that a call parses none."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Holder and times of a verified certificate.

    Attributes:
        principal: who it was issued to.
        serial: its serial number.
        begins_s: since when it is valid, in seconds since the epoch.
        ends_s: until when.
        hosts: names and addresses of a server in it.
        authority: key id of the authority that issued it, in hex; empty: not known.
        pem: the certificate; empty: not kept, or there is none, as of a login by password at a web port.
    """

    principal: Principal
    serial: int
    begins_s: int
    ends_s: int
    hosts: tuple[str, ...] = ()
    authority: str = ""
    pem: bytes = field(default=b"", repr=False, compare=False)

    @property
    def issued_s(self) -> int:
        """Time at which the certificate was issued, in seconds since the epoch."""
        return self.begins_s + BACKDATED_S

    @property
    def renewal_s(self) -> int:
        """Time of its renewal: after two thirds of its life, in seconds since the epoch."""
        return self.issued_s + 2 * (self.ends_s - self.issued_s) // 3


_epoch_s = lru_cache(maxsize=KEPT)(ssl.cert_time_to_seconds)
"""Seconds since the epoch of a time in a certificate; parsing it is a tenth of a handshake."""

CALLER: contextvars.ContextVar[PeerIdentity | None] = contextvars.ContextVar("caller", default=None)
"""Caller of the method that this task answers; None: the server has no credentials."""


def user_name() -> str:
    """Return the user who called the method that this task answers; empty: a server, or unknown."""
    caller = CALLER.get()
    if caller is None or caller.principal.role is AccessRole.SERVER:
        return ""
    return caller.principal.name


@lru_cache(maxsize=KEPT)
def identity_of_pem(pem: bytes) -> PeerIdentity:
    """Return the identity of a verified certificate in PEM form.

    Raises:
        Unauthenticated: it is no user's or server's.
    """
    from cryptography import x509  # slow to import, and most processes accept no certificates

    from nyala.security.verify import authority_of, hosts_of, uris

    try:
        found = x509.load_pem_x509_certificate(pem)
    except ValueError as err:
        raise Unauthenticated(f"the caller's certificate cannot be read: {err}") from err
    return PeerIdentity(
        principal_of(uris(found)),
        found.serial_number,
        int(found.not_valid_before_utc.timestamp()),
        int(found.not_valid_after_utc.timestamp()),
        hosts_of(found),
        authority_of(found),
        pem,
    )


def identity_of_peer(certificate: Mapping[str, Any]) -> PeerIdentity:
    """Return the identity of a verified certificate, as `ssl.SSLSocket.getpeercert` describes it.

    Raises:
        Unauthenticated: it is no user's or server's.
    """
    names = certificate.get("subjectAltName", ())
    principal = principal_of(value for kind, value in names if kind == "URI")
    return PeerIdentity(
        principal,
        int(certificate["serialNumber"], 16),
        int(_epoch_s(certificate["notBefore"])),
        int(_epoch_s(certificate["notAfter"])),
        tuple(value for kind, value in names if kind in ("DNS", "IP Address")),
    )
