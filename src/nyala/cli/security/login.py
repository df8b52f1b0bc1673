"""`nyala login` and `nyala logout`: the certificate of a user of a cluster, for some hours."""

import asyncio
import os
from typing import Annotated

import typer

from nyala.cli.output import MastersOption, say, stays, verb
from nyala.cli.security.secrets import (
    PasswordStdin,
    confirmed,
    new_password,
    present_password,
    token_in,
)
from nyala.cli.security.times import utc
from nyala.common.errors import InvalidArgument

KEPT = "a certificate may have been kept for this user: the command may be repeated; nyala logout removes it"


@verb
@stays(KEPT)
def login(
    user: Annotated[
        str, typer.Option("--user", envvar="NYALA_USER", help="Name of the user; a token has it.")
    ] = "",
    masters: MastersOption = "",
    at: Annotated[
        str,
        typer.Option(
            "--login",
            envvar="NYALA_LOGIN",
            help="Join addresses of masters; not given: those noted, else ports 3000 above the masters'.",
        ),
    ] = "",
    ca: Annotated[
        str, typer.Option("--ca", help="Certificate of the cluster's authority (ca.crt).")
    ] = "",
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="SHA-256 of that certificate, instead of the file.")
    ] = "",
    password_stdin: PasswordStdin = False,
    jwt: Annotated[
        str,
        typer.Option(
            "--jwt",
            help="File with a token (JWT) of an issuer that the masters accept; - for standard input.",
        ),
    ] = "",
    change_password: Annotated[
        bool, typer.Option("--change-password", help="Read a new password too, and set it.")
    ] = False,
) -> None:
    """Log in with a password or a token, and keep the certificate for later commands of this user.

    The password comes from the terminal, from standard input, or from NYALA_PASSWORD. It, or the token, is
    sent only to a master that proves that it belongs to the authority that you trust.
    """
    from nyala.client.cluster.masters import parse_addresses
    from nyala.client.login import exchange, store
    from nyala.security.identity import identity_of_pem

    if not user and not jwt:
        raise InvalidArgument("nobody is named; give --user NAME, or a token with --jwt FILE")
    if jwt and (password_stdin or change_password):
        raise InvalidArgument("a login has a password or a token; leave out --jwt, or the password")
    token = token_in(jwt) if jwt else ""
    named = parse_addresses(masters)
    addresses = store.login_addresses(named, at)
    trusted = _trusted(named, addresses, ca, fingerprint)
    password = "" if token else present_password(user, stdin=password_stdin)
    wanted = ""
    if change_password:
        from nyala.security.accounts.passwords import check_new

        wanted = new_password(user, stdin=password_stdin)
        check_new(user, wanted)
    proof = exchange.Proof(user, password, new_password=wanted, token=token)
    issued = asyncio.run(exchange.log_in(addresses, trusted, proof))
    files = store.keep(named, addresses, issued)
    found = identity_of_pem(issued.certificate)
    say(f"logged in as {found.principal}, until {utc(found.ends_s * 1_000_000)}: {files.cert}")
    if wanted:
        say("the password is changed; certificates from earlier logins are revoked")


@verb
@stays("the certificate may have been removed: nyala login makes another one")
def logout(masters: MastersOption = "") -> None:
    """Remove the certificate of nyala login from this machine; it is not revoked (nyala cert revoke)."""
    from nyala.client.cluster.masters import parse_addresses
    from nyala.client.login import store

    done = store.forget(parse_addresses(masters))
    say("logged out" if done else "there is no login at this cluster; nothing was removed")


def _trusted(masters: list[str], addresses: list[str], ca: str, fingerprint: str) -> bytes:
    """Return the certificate of the authority that the user trusts.

    Args:
        masters: as given.
        addresses: join addresses of masters.
        ca: file of the certificate; empty: not given.
        fingerprint: its SHA-256; empty: not given.
    """
    from nyala.client.login import trust
    from nyala.security import known
    from nyala.security.files import CA_VARIABLE

    if ca and fingerprint:
        raise InvalidArgument("give --ca or --fingerprint, and not both")
    if fingerprint:
        wanted = trust.parse_fingerprint(fingerprint)
        return asyncio.run(trust.by_fingerprint(addresses, lambda found: found == wanted))
    noted = known.noted(masters)
    file = ca or os.environ.get(CA_VARIABLE, "") or (noted.ca if noted else "")
    if file:
        return trust.of_file(file)
    return asyncio.run(trust.by_fingerprint(addresses, _accepts))


def _accepts(fingerprint: str) -> bool:
    say("The authority of this cluster is not known here. Its fingerprint (SHA-256) is")
    say(f"  {fingerprint}")
    say("An administrator reads it with: nyala cert show ca.crt")
    return confirmed("Is it the same?")
