"""`nyala ca`: replacement of the cluster's certificate authority, while everything serves."""

from typing import Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, say, show, stays, verb
from nyala.cli.security.times import utc

app = typer.Typer(no_args_is_help=True, help="Certificate authority: replace it.")
CHANGED = "the step may have been taken: nyala ca show"


@app.callback()
def _group() -> None:
    """Certificate authority: replace it."""


@app.command("rotate")
@verb
@stays(CHANGED)
def rotate(masters: MastersOption = "") -> None:
    """Begin to replace the authority: a new one is made, and servers change to it by themselves.

    Servers first trust the new authority, then renew their certificates. See nyala ca show; the old one is
    trusted until nyala ca retire.
    """
    from nyala.operate.run import ask_leader, change_at_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

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
def show_(masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show the authorities, which of them issues, and which servers and logins still need the old one."""
    from nyala.operate.run import ask_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    answer = ask_leader(masters, methods.AUTHORITY_STATUS, pb.AuthorityStatusRequest())
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
    if not behind and not answer.logins:
        say(
            "nobody is behind; next: nyala ca retire"
            if answer.issuing_us
            else "no server is behind"
        )


@app.command("retire")
@verb
@stays(CHANGED)
def retire(
    masters: MastersOption = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if servers and logins of it are locked out."),
    ] = False,
) -> None:
    """End the trust in the old authority: nothing that it issued is accepted any more.

    It is refused while live servers or logins need it. Certificates of nyala cert user are not counted: renew
    them with nyala cert renew before. That of the user of this command is renewed first.
    """
    from nyala.cli.security.cert import renew_own
    from nyala.common.errors import NyalaError
    from nyala.operate.run import ask_leader, change_at_leader
    from nyala.security.authorities import bundle
    from nyala.wire import methods
    from nyala.wire.proto import access_pb2 as pb

    renew_own(masters)
    known = ask_leader(masters, methods.AUTHORITY_STATUS, pb.AuthorityStatusRequest())
    old = bundle.key_id(bundle.parse(known.certificates[-1])[0]) if known.issuing_us else ""
    wanted = pb.RetireAuthorityRequest(force=force, authority=old)
    change_at_leader(masters, methods.RETIRE_AUTHORITY, wanted)
    say(
        "the old certificate authority is retired: open connections stay, new ones need new certificates"
    )
    try:
        renew_own(masters)
    except NyalaError as err:  # it is retired all the same
        say(f"the ca.crt of this user still names it: {err.message}; next: nyala cert renew")
