"""Issuers whose JSON Web Tokens (RFC 7519) log users in: their file, and the check of a token.

The file is TOML, with one table for each issuer:

    [[issuer]]
    issuer = "https://login.example.com"    # claim `iss` of its tokens
    audience = "nyala"                      # claim `aud`, which tokens for other services do not have
    jwks = "/etc/nyala/jwks.json"           # its public keys (RFC 7517); relative: beside this file
    name_claim = "sub"                      # claim with the name of the account; this one if not given

File and keys are read for each login, so that a key which the issuer has replaced needs no restart.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import msgspec

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security.principal import check_name

MAX_TOKEN_BYTES = 16 << 10
MAX_FILE_BYTES = 1 << 20
MAX_ISSUER = 256
"""Largest length of the issuer of an account."""
LEEWAY_S = 30
"""Difference between the clocks of issuer and master that is tolerated, in seconds."""
ALGORITHMS = (
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "PS256",
    "PS384",
    "PS512",
    "RS256",
    "RS384",
    "RS512",
)
"""Signatures with a private key. Those with a shared secret, and `none`, are not accepted."""
KEY_TYPES = ("EC", "OKP", "RSA")


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One issuer, as in the file."""

    issuer: str
    audience: str
    jwks: str
    name_claim: str = "sub"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuer: list[Issuer]


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Account that a verified token names.

    Attributes:
        name: of the account.
        issuer: of the token.
        only: there is no other issuer.
    """

    name: str
    issuer: str
    only: bool


def check_issuer(issuer: str) -> str:
    """Return the issuer of an account; empty: none.

    Raises:
        InvalidArgument: no token can have it.
    """
    if len(issuer) > MAX_ISSUER or not issuer.isprintable():
        raise InvalidArgument(
            f"an issuer has at most {MAX_ISSUER} printable characters; give the claim iss of its tokens, as "
            "in the file of issuers"
        )
    return issuer


class TokenIssuers:
    """The issuers of a file.

    Args:
        path: of the file.

    Raises:
        InvalidArgument: the file, or one with keys, cannot be read or is malformed.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        for issuer in self._read():
            self._keys(issuer)

    def account_in(self, token: str, now_s: float) -> TokenAccount:
        """Return the account that a token names, once it is verified. Reads files.

        Args:
            token: as the user has sent it.
            now_s: the time, in seconds since the epoch.

        Raises:
            Unauthenticated: it is not accepted; the message says why, and repeats nothing of it.
            InvalidArgument: the files of the issuers are malformed.
        """
        if len(token.encode(errors="replace")) > MAX_TOKEN_BYTES:
            raise _refused(f"it is larger than {MAX_TOKEN_BYTES} bytes")
        try:
            unverified = jwt.decode(token, options={"verify_signature": False})
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, ValueError, RecursionError) as err:
            raise _refused("it is not a JSON Web Token") from err
        known = self._read()
        issuer = next((i for i in known if i.issuer == unverified.get("iss")), None)
        if issuer is None:
            raise _refused(
                "its issuer (iss) is not one of the file that the option jwt_issuers names"
            )
        claims = self._verified(token, header, issuer)
        _check_times(claims, now_s)
        name = claims.get(issuer.name_claim)
        try:
            named = check_name(name if isinstance(name, str) else "")
        except InvalidArgument as err:
            raise _refused(
                f"its claim {issuer.name_claim!r} is not the name of an account: 1 to 64 letters, digits "
                "and . _ @ -"
            ) from err
        return TokenAccount(named, issuer.issuer, only=len(known) == 1)

    def _verified(self, token: str, header: dict[str, Any], issuer: Issuer) -> dict[str, Any]:
        """Return the claims of a token, with the signature, issuer and audience verified."""
        keys = self._keys(issuer)
        kid = header.get("kid")
        fitting = [k for k in keys if k.key_id == kid] if kid is not None else keys
        if len(fitting) != 1:
            raise _refused(
                "it does not name one of the keys of its issuer (kid); if the issuer has new keys, update "
                "the file of its keys"
            )
        options: Any = {
            "require": ["iss", "aud", "exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False,
        }  # fmt: skip
        try:
            return jwt.decode(
                token, fitting[0], algorithms=list(ALGORITHMS), audience=issuer.audience,
                issuer=issuer.issuer, options=options,
            )  # fmt: skip
        except jwt.InvalidAudienceError as err:
            raise _refused("its audience (aud) is another service") from err
        except jwt.MissingRequiredClaimError as err:
            raise _refused(f"it has no claim {err.claim!r}") from err
        except (jwt.PyJWTError, ValueError, TypeError) as err:
            raise _refused("its signature is not that of its issuer") from err

    def _read(self) -> list[Issuer]:
        text = _bounded(self._path)
        try:
            found = msgspec.toml.decode(text, type=_File).issuer
        except msgspec.DecodeError as err:
            raise InvalidArgument(
                f"{self._path}: {err}; it has tables [[issuer]] with issuer, audience and jwks"
            ) from err
        names = [i.issuer for i in found]
        if len(set(names)) != len(names) or not all(i.issuer and i.audience for i in found):
            raise InvalidArgument(
                f"{self._path}: an issuer is named twice, or issuer or audience is empty; correct it"
            )
        return found

    def _keys(self, issuer: Issuer) -> list[jwt.PyJWK]:
        path = self._path.parent / issuer.jwks
        try:
            listed = json.loads(_bounded(path))["keys"]
            usable = [
                k for k in listed if k.get("kty") in KEY_TYPES and k.get("use", "sig") == "sig"
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
            raise InvalidArgument(f"{path} is not a JSON Web Key Set (RFC 7517): {err}") from err
        found = [made for k in usable if (made := _key_of(k)) is not None]
        if not found:
            raise InvalidArgument(
                f"{path} has no public key for signatures; get the issuer's keys again"
            )
        return found


def _key_of(fields: dict[str, Any]) -> jwt.PyJWK | None:
    """Return a key of a set; None: it is of a kind that is not known here, and is ignored (RFC 7517, 5)."""
    try:
        return jwt.PyJWK(fields)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _bounded(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(MAX_FILE_BYTES + 1)
    except OSError as err:
        raise InvalidArgument(f"{path}, of the option jwt_issuers, cannot be read: {err}") from err
    if len(found) > MAX_FILE_BYTES:
        raise InvalidArgument(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return found


def _check_times(claims: dict[str, Any], now_s: float) -> None:
    """Check that a token is valid now.

    Raises:
        Unauthenticated: it is not.
    """
    ends, begins = claims["exp"], claims.get("nbf", 0)
    for value in (ends, begins):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused("one of its times (exp, nbf) is not a number")
    if not now_s < ends + LEEWAY_S:  # NaN is refused
        raise _refused("it has expired; get a new one from its issuer")
    if not now_s > begins - LEEWAY_S:
        raise _refused(
            "it is not valid yet; compare the clocks of its issuer and the leader master"
        )


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(f"the token is not accepted: {why}")
