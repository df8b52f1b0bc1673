"""Revoked certificates, as a process knows them: by serial number, or all of one holder until a time.

The masters keep the list in the catalog; each server asks for it every two seconds (`admin/certificates.py`).
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security.identity import PeerIdentity
from nyala.security.principal import AccessRole, check_name

DAY_US = 86_400_000_000
SERIAL, NAME, USER = "serial-", "name-", "user-"
"""Beginnings of the ids of revocations. A USER entry does not mean servers of the name."""


@dataclass(frozen=True, slots=True, order=True)
class Revocation:
    """One entry of the list.

    Attributes:
        id: `serial-<hex>`, `name-<name>` or `user-<name>`.
        revoked_us: when it was revoked, since the epoch; a name: certificates issued until then are revoked.
    """

    id: str
    revoked_us: int


def id_of_serial(text: str) -> str:
    """Return the id of the revocation of a serial number in hex, with or without colons.

    Raises:
        InvalidArgument: it is not one.
    """
    digits = text.replace(":", "").lower()
    try:
        number = int(digits, 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 160:
        raise InvalidArgument(f"{text[:80]!r} is not the serial number of a certificate, in hex")
    return f"{SERIAL}{number:x}"


def id_of_name(name: str) -> str:
    """Return the id of the revocation of a holder's certificates.

    Raises:
        InvalidArgument: no certificate can have this name.
    """
    return f"{NAME}{check_name(name)}"


def id_of_user(name: str) -> str:
    """Return the id of the revocation of the certificates of a user, which does not mean servers of the name.

    Raises:
        InvalidArgument: no certificate can have this name.
    """
    return f"{USER}{check_name(name)}"


class Revocations:
    """The list of revoked certificates of one process. It is replaced as a whole."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._listeners: list[Callable[[], None]] = []
        self.digest = digest(())

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after each change of the list."""
        self._listeners.append(listener)

    def replace(self, entries: Iterable[Revocation]) -> None:
        """Replace the list, and have the connections closed whose certificates are revoked now."""
        found = sorted(entries)
        self._entries = {entry.id: entry.revoked_us for entry in found}
        self.digest = digest(found)
        for listener in self._listeners:
            listener()

    def check(self, identity: PeerIdentity) -> None:
        """Check that a certificate is not revoked.

        Raises:
            Unauthenticated: it is.
        """
        if not self._entries:
            return
        name = identity.principal.name
        until_us = self._entries.get(f"{NAME}{name}", 0)
        if identity.principal.role is not AccessRole.SERVER:
            until_us = max(until_us, self._entries.get(f"{USER}{name}", 0))
        issued_us = identity.issued_s * 1_000_000
        if f"{SERIAL}{identity.serial:x}" in self._entries or issued_us <= until_us:
            raise Unauthenticated(
                f"the certificate of {identity.principal} (serial {identity.serial:x}) was revoked; ask an "
                "administrator for a new one"
            )

    @property
    def entries(self) -> list[Revocation]:
        """The list, in its order."""
        return [Revocation(id, at) for id, at in sorted(self._entries.items())]

    def __len__(self) -> int:
        return len(self._entries)


def digest(entries: Iterable[Revocation]) -> bytes:
    """Return the digest of a list, by which two copies are compared."""
    made = hashlib.sha256()
    for entry in sorted(entries):
        made.update(f"{entry.id} {entry.revoked_us}\n".encode())
    return made.digest()
