"""The exchange of a login: a proof of who the user is, for a certificate of a key that is made here."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nyala.common.errors import Retryable, Unavailable
from nyala.security.signing_request import new_request
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_client


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof that a user has an account: a password, or a token of an issuer.

    Attributes:
        user: name of the account; empty: the one that the token names.
        password: its password.
        new_password: the password that the account gets; empty: it stays.
        token: JSON Web Token, instead of a password.
    """

    user: str
    password: str = field(default="", repr=False)
    new_password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Issued:
    """Result of a login.

    Attributes:
        ca: certificates of the authorities that the master trusts, as PEM.
        certificate: of the user.
        key: private key of it.
        masters: public addresses of the masters.
    """

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    masters: tuple[str, ...]


async def log_in(addresses: Sequence[str], ca: bytes, proof: Proof) -> Issued:
    """Log in at the first master that answers.

    Args:
        addresses: join addresses of masters.
        ca: certificate of the authority that is trusted, as PEM.
        proof: sent once the master has proved that it belongs to this authority.

    Raises:
        Unauthenticated: the proof is wrong, or the server at an address is of another authority.
        Forbidden: the account is disabled, or the masters do not sign.
        InvalidArgument: a new password is too weak.
        Unavailable: no master answers.
    """
    key, request = new_request()
    wanted = pb.JoinRequest(
        csr=request,
        login=pb.LoginRequest(
            name=proof.user,
            password=proof.password,
            new_password=proof.new_password,
            token=proof.token,
        ),
    )
    errors = []
    for address in addresses:
        try:
            answer = await join_client.join(address, ca, wanted)
        except Retryable as err:
            errors.append(err.message)
            continue
        return Issued(answer.ca or ca, answer.certificate, key, tuple(answer.master_addresses))
    raise Unavailable(f"no master lets users log in ({'; '.join(errors) or 'no address is given'})")
