"""Passwords of users: what is required of them, and their hashes (scrypt). Pure, apart from its time."""

import hashlib
import hmac
import unicodedata
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument

LEAST, MOST = 12, 256
"""Fewest and most characters of a password."""
LEAST_DISTINCT = 5
"""Fewest different characters."""
SALT_BYTES, HASH_BYTES = 16, 32
LOG2_N, R, P = 15, 8, 1
"""Cost of a new hash: 32 MiB, and about 0.1 s of one core."""
_MAX_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """Hash of a password.

    Attributes:
        log2_n: cost of scrypt, as for `r` and `p` (RFC 7914); kept with the hash, so that it can be raised.
        r: its block size.
        p: its parallelisation.
        salt: random, of this password.
        digest: the hash.
    """

    log2_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes


def check_new(name: str, password: str) -> None:
    """Check that a password may be that of a user. The message does not repeat it.

    Raises:
        InvalidArgument: too short, too long, too uniform, or the name of the user.
    """
    why = ""
    if len(password) < LEAST:
        why = f"it has {len(password)} characters, and at least {LEAST} are required"
    elif len(password) > MOST:
        why = f"it has {len(password)} characters, and at most {MOST} are taken"
    elif len(set(password)) < LEAST_DISTINCT:
        why = f"it has fewer than {LEAST_DISTINCT} different characters"
    elif name.lower() in password.lower() and len(password) < LEAST + len(name):
        why = "it is little more than the name of the user"
    if why:
        raise InvalidArgument(
            f"the password of {name} is too weak or unusable: {why}; choose another one, for instance of "
            "four unrelated words"
        )


def hash_of(password: str, salt: bytes) -> PasswordHash:
    """Return the hash of a password; takes about 0.1 s.

    Args:
        password: the password.
        salt: SALT_BYTES random bytes.
    """
    return PasswordHash(LOG2_N, R, P, salt, _scrypt(password, LOG2_N, R, P, salt))


def matches(password: str, known: PasswordHash | None) -> bool:
    """Return whether a password has this hash; takes the same time whether it has, or there is none.

    Args:
        password: what the user sent.
        known: hash of the user's password; None: the user has none, or does not exist.
    """
    if known is None:
        _scrypt(password, LOG2_N, R, P, bytes(SALT_BYTES))
        return False
    found = _scrypt(password, known.log2_n, known.r, known.p, known.salt)
    return hmac.compare_digest(found, known.digest)


def _scrypt(password: str, log2_n: int, r: int, p: int, salt: bytes) -> bytes:
    raw = unicodedata.normalize("NFC", password[: MOST + 1]).encode(errors="surrogatepass")
    return hashlib.scrypt(
        raw, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=HASH_BYTES
    )
