"""Principals: who a certificate was issued to, as the URI in its subject alternative name.

The URI is `nyala://<cluster>/<role>/<name>`. Servers and users of one cluster have certificates of one
certificate authority, whose key gives the cluster part.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from nyala.common.errors import InvalidArgument, Unauthenticated

SCHEME = "nyala"
_URI = re.compile(r"nyala://([0-9a-f]{32})/([a-z]+)/([A-Za-z0-9._@-]{1,64})")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_SERVER_NAME = re.compile(r"(tserver|master|member)-([0-9a-f]{32})")


class AccessRole(IntEnum):
    """Role of a principal; each user role includes those below it.

    USER: may use only the tables and journals that are granted to its name. READER: reads rows, changes,
    journals and definitions. WRITER: also writes them. OWNER: also creates, alters and drops tables and
    journals. ADMIN: also operates the cluster. SERVER: a master, a tablet server or a member of an ensemble;
    it may call everything.
    """

    USER = 0
    READER = 1
    WRITER = 2
    OWNER = 3
    ADMIN = 4
    SERVER = 5


USER_ROLES = tuple(r for r in AccessRole if r is not AccessRole.SERVER)


@dataclass(frozen=True, slots=True)
class Principal:
    """Holder of a certificate.

    Attributes:
        cluster: 32 hex digits, from the key of the certificate authority.
        role: what it may call.
        name: of the user; of a server `tserver-<uuid>`, `master-<uuid>` or `member-<uuid>` (of an ensemble)
            if masters renew its certificate, else its first host.
    """

    cluster: str
    role: AccessRole
    name: str

    @property
    def uri(self) -> str:
        """The URI of its certificate."""
        return f"{SCHEME}://{self.cluster}/{self.role.name.lower()}/{self.name}"

    @property
    def server_uuid(self) -> str | None:
        """Uuid of the server that its certificate was issued to; None: it names a host, or a user."""
        found = _SERVER_NAME.fullmatch(self.name) if self.role is AccessRole.SERVER else None
        return None if found is None else found[2]

    @property
    def may_be_master(self) -> bool:
        """True for a server whose certificate does not say that it is a tablet server or a member."""
        found = _SERVER_NAME.fullmatch(self.name)
        return self.role is AccessRole.SERVER and (found is None or found[1] == "master")

    def __str__(self) -> str:
        return f"{self.role.name.lower()} {self.name}"


def server_name(kind: str, uuid: str) -> str:
    """Return the name in the certificate of one server: `tserver-<uuid>`, `master-<uuid>` or `member-<uuid>`.

    Raises:
        InvalidArgument: not a role or uuid of a server.
    """
    name = f"{kind}-{uuid}"
    if not _SERVER_NAME.fullmatch(name):
        raise InvalidArgument(f"{name[:80]!r} does not name a server by its role and uuid")
    return name


def parse_role(text: str) -> AccessRole:
    """Return a role of users by its name.

    Raises:
        InvalidArgument: no such role; the message lists them.
    """
    for role in USER_ROLES:
        if text.lower() == role.name.lower():
            return role
    names = ", ".join(r.name.lower() for r in USER_ROLES)
    raise InvalidArgument(f"{text!r} is not a role of users; use one of: {names}")


def check_name(name: str) -> str:
    """Return a name that a certificate can carry.

    Raises:
        InvalidArgument: empty, too long, or other characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} cannot be the name in a certificate; use 1 to 64 letters, digits and . _ @ -"
        )
    return name


def principal_of(uris: Iterable[str]) -> Principal:
    """Return the principal of a verified certificate.

    Args:
        uris: the URIs in its subject alternative name.

    Raises:
        Unauthenticated: not exactly one of them is of this form.
    """
    ours = [u for u in uris if u.startswith(f"{SCHEME}://")]
    found = _URI.fullmatch(ours[0]) if len(ours) == 1 else None
    if found is None or found[2].upper() not in AccessRole.__members__:
        raise Unauthenticated(
            "the certificate names no user or server of a nyala cluster; use one that was made by "
            "`nyala cert server` or `nyala cert user`"
        )
    return Principal(found[1], AccessRole[found[2].upper()], found[3])
