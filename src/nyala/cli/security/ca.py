"""`nyala ca`: replacement of the cluster's certificate authority, while everything serves."""

from typing import Annotated, Any

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, say, show, stays, verb
from nyala.cli.security.times import utc

app = typer.Typer(no_args_is_help=True, help="Certificate authority: replace it.")
CHANGED = "the step may have been taken: nyala ca show"
Directories = Annotated[
    list[str] | None,
    typer.Option(
        "--dir",
        help="Folder of the authority, which lists the certificates of nyala cert user; may be repeated. By "
        "default that of the ca.crt in use.",
    ),
]


@app.callback()
def _group() -> None:
    """Certificate authority: replace it."""


@app.command("rotate")
@verb
@stays(CHANGED)
def rotate(
    masters: MastersOption = "",
    abort: Annotated[
        bool,
        typer.Option(
            "--abort", help="Take the new authority back, if it has not issued certificates yet."
        ),
    ] = False,
) -> None:
    """Begin to replace the authority: a new one is made, and servers change to it by themselves.

    Servers first trust the new authority, then renew their certificates. See nyala ca show; the old one is
    trusted until nyala ca retire. While a server keeps the new authority from issuing, --abort goes back to
    the old one alone.
    """
    from nyala.operate.run import ask_leader, change_at_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    if abort:
        change_at_leader(masters, methods.ABORT_AUTHORITY, pb.AbortAuthorityRequest())
        say("the replacement is aborted: the old certificate authority goes on alone, and servers")
        say("stop trusting the new one within seconds")
        return
    known = ask_leader(masters, methods.AUTHORITY_STATUS, pb.AuthorityStatusRequest()).certificates
    # The authority is named so that the request takes effect once, however often it is sent.
    replaces = bundle.key_id(bundle.parse(known[0])[0]) if len(known) == 1 else ""
    wanted = pb.RotateAuthorityRequest(replaces=replaces)
    made = change_at_leader(masters, methods.ROTATE_AUTHORITY, wanted)
    say(
        "a new certificate authority is made, and its key is on the masters; its fingerprint (SHA-256) is"
    )
    print(bundle.fingerprint(bundle.parse(made.certificate)[0]))
    say(
        "next: nyala ca show, until no server is behind; then nyala cert renew for certificates of users,"
    )
    say("and nyala ca retire")


@app.command("show")
@verb
def show_(
    masters: MastersOption = "", format: FormatOption = Format.TABLE, dir: Directories = None
) -> None:
    """Show the authorities, which of them issues, and which servers, logins and users need the old one."""
    from nyala.operate.run import ask_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    listed = _listed(masters, dir)
    request = pb.AuthorityStatusRequest(issued=listed)
    answer = ask_leader(masters, methods.AUTHORITY_STATUS, request)
    known = [bundle.parse(pem)[0] for pem in answer.certificates]
    rows = [
        (
            bundle.fingerprint(certificate),
            "issues" if at == 0 else ("trusted, old" if answer.issuing_us else "trusted, new"),
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
        )
        for at, certificate in enumerate(known)
    ]
    behind = [(s.role, s.address, s.uuid, s.lacks) for s in answer.behind]
    if format is Format.JSON:
        names = ("sha256", "state", "valid_until")
        print_json(
            {
                "authorities": [dict(zip(names, row, strict=True)) for row in rows],
                "behind": [
                    dict(zip(("role", "address", "uuid", "lacks"), b, strict=True)) for b in behind
                ],
                "logins": list(answer.logins),
                "users": None
                if listed is None
                else [{"user": u.user, "serial": u.serial} for u in answer.users],
            }
        )
        return
    show(("sha256", "state", "valid until"), rows, format)
    if len(known) == 1:
        return
    say(f"last step at {utc(answer.changed_us)}, by {answer.changed_by or 'the masters'}")
    for role, address, uuid, lacks in behind:
        say(f"behind: {role} {address} ({uuid}) lacks {lacks}")
    if answer.logins:
        say(f"logins that may be of the old authority: {', '.join(answer.logins)}")
    for user in answer.users:
        ends = utc(user.ends_s * 1_000_000)
        say(f"not renewed: certificate of {user.user}, serial number {user.serial}, until {ends}")
    if answer.issuing_us and listed is None:
        say(
            "certificates of nyala cert user are not checked: name the authority's folder with --dir"
        )
    if behind or answer.logins:
        return
    if not answer.issuing_us:
        say("no server is behind")
    elif answer.users:
        say("no server is behind; next: nyala cert renew by these users, and nyala ca retire")
    elif listed is None:
        say("no server is behind; next: nyala ca retire --dir FOLDER")
    else:
        say("nobody is behind; next: nyala ca retire")


@app.command("retire")
@verb
@stays(CHANGED)
def retire(
    masters: MastersOption = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if servers, logins and users of it are locked out."),
    ] = False,
    dir: Directories = None,
) -> None:
    """End the trust in the old authority: nothing that it issued is accepted any more.

    It is refused while servers, logins, or certificates of nyala cert user need it. The latter are listed in
    the authority's folder, and their holders renew them with nyala cert renew. That of the user of this
    command is renewed first.
    """
    from nyala.cli.security.cert import renew_own
    from nyala.common.errors import NyalaError
    from nyala.operate.run import ask_leader, change_at_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    listed = _listed(masters, dir)
    renew_own(masters)
    known = ask_leader(masters, methods.AUTHORITY_STATUS, pb.AuthorityStatusRequest())
    old = bundle.key_id(bundle.parse(known.certificates[-1])[0]) if known.issuing_us else ""
    wanted = pb.RetireAuthorityRequest(force=force, issued=listed, authority=old)
    change_at_leader(masters, methods.RETIRE_AUTHORITY, wanted)
    say(
        "the old certificate authority is retired: no connection with one of its certificates stays open"
    )
    try:
        renew_own(masters)
    except NyalaError as err:  # it is retired all the same
        say(f"the ca.crt of this user still names it: {err.message}; next: nyala cert renew")


def _listed(masters: str, directories: list[str] | None) -> Any:
    """Return the certificates of users that folders of the authority list; None: no folder has a list.

    Args:
        masters: addresses of masters.
        directories: the folders; none: that of the `ca.crt` in use.

    Raises:
        NotFound, Corrupt: a folder that was named has no list, or it cannot be read.
    """
    from pathlib import Path

    from nyala.client.cluster.masters import parse_addresses
    from nyala.client.credentials import credentials_for
    from nyala.security.authorities import issued
    from nyala.wire.proto import access_pb2 as pb

    if not directories:
        known = credentials_for(",".join(parse_addresses(masters)))
        own = None if known is None else Path(known.files.ca).parent
        if own is None or not (own / issued.FILE).exists():
            return None
        directories = [str(own)]
    found = pb.IssuedCertificates()
    for entry in (e for directory in directories for e in issued.load(directory)):
        found.certificates.add(
            serial=entry.serial, user=entry.user, issued_s=entry.issued_s, ends_s=entry.not_after,
            authority=entry.authority,
        )  # fmt: skip
    return found
