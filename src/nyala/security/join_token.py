"""Join tokens: the text by which a server joins a cluster, and what the catalog keeps of it.

A token is `ny1.<SHA-256 of the authority's certificate>.<id>.<secret>`. The server that joins compares the
certificate with the hash before it sends the secret. The catalog has the hash of the secret only.
"""

import hashlib
import hmac
import random
import re
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument

VERSION = "ny1"
ROLES = ("tserver", "master")
ID_BYTES, SECRET_BYTES = 8, 32
MAX_TTL_S = 30 * 86_400
MAX_USES = 1_000
_FORM = re.compile(rf"{VERSION}\.([0-9a-f]{{64}})\.([0-9a-f]{{16}})\.([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token with its secret.

    Attributes:
        ca_hash: SHA-256 of the DER form of the authority's certificate, in hex.
        id: names the token in the catalog.
        secret: known to its holder only.
    """

    ca_hash: str
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{VERSION}.{self.ca_hash}.{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"JoinToken({self.id})"  # logs and stacks have no secret


def new(ca_hash: str, rng: random.Random) -> JoinToken:
    """Return a new token.

    Args:
        ca_hash: see `JoinToken`.
        rng: source of the id and the secret; the system's.
    """
    return JoinToken(ca_hash, rng.randbytes(ID_BYTES).hex(), rng.randbytes(SECRET_BYTES).hex())


def parse(text: str) -> JoinToken:
    """Return the token in a text.

    Raises:
        InvalidArgument: it is not one; the message does not repeat it.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(
            f"this is not a join token, which has the form {VERSION}.<hash>.<id>.<secret>; copy the whole "
            "line that `nyala token create` printed"
        )
    return JoinToken(*found.groups())


def hash_of(secret: str) -> bytes:
    """Return the hash of a secret, as the catalog keeps it. The secret is random: no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


def matches(secret: str, known: bytes) -> bool:
    """Return whether a secret has this hash, in constant time."""
    return hmac.compare_digest(hash_of(secret), known)


def check_wanted(role: str, ttl_s: int, uses: int) -> None:
    """Check the parameters of a new token.

    Args:
        role: of the servers that may join.
        ttl_s: time for which it is valid, in seconds.
        uses: number of servers that may join.

    Raises:
        InvalidArgument: one of them is outside its limits.
    """
    if role not in ROLES:
        raise InvalidArgument(f"{role!r} is not a role of servers; use one of: {', '.join(ROLES)}")
    if not 1 <= ttl_s <= MAX_TTL_S:
        raise InvalidArgument(
            f"a token is valid for 1 s to {MAX_TTL_S // 86_400} days, not for {ttl_s} s; use --ttl 1h"
        )
    if not 1 <= uses <= MAX_USES:
        raise InvalidArgument(f"a token has 1 to {MAX_USES} uses, not {uses}")
