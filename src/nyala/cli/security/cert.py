"""`nyala init` and `nyala cert`: certificates of clusters on several machines."""

from typing import Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, say, show, stays, verb
from nyala.cli.security.times import utc

app = typer.Typer(no_args_is_help=True, help="Certificates of servers and users.")

Directory = Annotated[
    str, typer.Option("--dir", help="Folder of the certificate authority, made by nyala init.")
]
Out = Annotated[str, typer.Option("--out", help="Folder for the files; created.")]
Days = Annotated[int, typer.Option("--days", help="Days for which the certificate is valid.")]


@app.callback()
def _group() -> None:
    """Certificates of servers and users."""


@verb
@stays("the folder may have a part of the authority's files; remove it before you try again")
def init(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder for the authority's key; keep it private.")
    ],
) -> None:
    """Make the certificate authority of a cluster, and the certificate of its first administrator."""
    from nyala.security import issue

    files = issue.initialise(directory)
    print(
        f"{directory} has the certificate authority of a new cluster; ca.key stays there, and is private"
    )
    print(
        f"next:       nyala cert server --dir {directory} --host ADDRESS --out FOLDER    for each server"
    )
    print("as the administrator:")
    _print_variables(files.variables)


@app.command("server")
@verb
@stays("the folder given with --out may have a part of the files; the command may be repeated")
def server(
    dir: Directory,
    out: Out,
    host: Annotated[
        list[str],
        typer.Option(
            "--host", help="Name or address under which others reach it; may be repeated."
        ),
    ],
    days: Days = 365,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="tserver-UUID or master-UUID: the certificate is for this server only.",
        ),
    ] = "",
    signs: Annotated[
        bool,
        typer.Option("--signs", help="For a master: add ca.key, so that servers join with tokens."),
    ] = False,
) -> None:
    """Make the certificate of a master or tablet server."""
    from nyala.security import issue

    files = issue.server(dir, out, host, days, name, signs=signs)
    print(f"copy {out} to the server, and start it with:")
    print(f"  --ca {files.ca} --cert {files.cert} --key {files.key}")


@app.command("user")
@verb
@stays("the folder given with --out may have a part of the files; the command may be repeated")
def user(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    dir: Directory,
    out: Out,
    role: Annotated[
        str,
        typer.Option("--role", help="reader, writer, owner or admin; each includes those before."),
    ] = "reader",
    days: Days = 365,
) -> None:
    """Make the certificate of a user."""
    from nyala.security import issue
    from nyala.security.principal import parse_role

    files = issue.user(dir, out, name, parse_role(role), days)
    print(f"give {out} to {name}, who sets:")
    _print_variables(files.variables)


@app.command("show")
@verb
def show_(
    file: Annotated[str, typer.Argument(help="A certificate in PEM form.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Show who a certificate was issued to, its hosts, and until when it is valid."""
    from nyala.security.describe import describe

    show(("field", "value"), list(describe(file).items()), format)


@app.command("revoke")
@verb
@stays("the certificate may have been revoked: nyala cert revoked")
def revoke(
    holder: Annotated[str, typer.Argument(help="Serial number in hex, or the name of the holder.")],
    masters: MastersOption = "",
) -> None:
    """Revoke a certificate, or by a name all of its holder's that exist now, within seconds.

    nyala cert show FILE shows name and serial number. Certificates that are made later for the same name are
    valid.
    """
    import re

    from nyala.operate.run import change_at_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    serial = re.fullmatch(r"(?:[0-9a-fA-F]{2}:?){10,20}|[0-9a-fA-F]{20,40}", holder)
    request = pb.RevokeRequest(serial=holder) if serial else pb.RevokeRequest(name=holder)
    made = change_at_leader(masters, methods.REVOKE, request).revocation
    say(f"revoked: {made.id}; open connections end within seconds")


@app.command("revoked")
@verb
def revoked(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the certificates that are revoked."""
    from nyala.operate.run import ask_leader
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    answer = ask_leader(masters, methods.REVOCATIONS, pb.RevocationsRequest())
    rows = [(*r.id.split("-", 1), utc(r.revoked_us), r.revoked_by) for r in answer.revocations]
    show(("by", "value", "revoked", "by whom"), sorted(rows), format)


@app.command("renew")
@verb
@stays("the files may have been replaced: nyala cert show")
def renew(masters: MastersOption = "") -> None:
    """Replace the certificate in use, and ca.crt, after the cluster's authority was replaced.

    The new certificate is of the new authority, with the role, the end and the serial number of the old one.
    The files are those that the command uses: of the environment, of a login, or of nyala up.
    """
    where = renew_own(masters)
    say(f"renewed: {where}" if where else "the certificate is of the present authority already")


def renew_own(masters: str) -> str:
    """Replace the files of the credentials of this process if their authority was replaced.

    Args:
        masters: addresses of masters.

    Returns:
        The file of the certificate; empty: it is of the present authority.

    Raises:
        InvalidArgument: the process has no certificate.
        NyalaError: no leader answers, or it does not sign.
    """
    from nyala.client.cluster.masters import parse_addresses
    from nyala.client.credentials import credentials_for
    from nyala.client.login import reissue
    from nyala.common.errors import InvalidArgument
    from nyala.operate.run import ask_leader
    from nyala.security.signing_request import request_for
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    known = credentials_for(",".join(parse_addresses(masters)))
    if known is None:
        raise InvalidArgument("this cluster is used without certificates: there is none to renew")
    csr = request_for(known.pem.key)
    answer = ask_leader(masters, methods.REISSUE, pb.ReissueRequest(csr=csr))
    reissue.replace(known, answer.ca, answer.certificate)
    return known.files.cert if answer.certificate else ""


def _print_variables(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        print(f"  export {name}={value}")
