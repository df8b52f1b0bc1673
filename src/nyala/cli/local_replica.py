"""`nyala local_replica ...`: replicas in the data directory of a stopped server."""

from typing import Annotated, Any

import typer

from nyala.cli.fs import ServerDir, ServerRole
from nyala.cli.output import FILES, Format, FormatOption, fail, print_json, say, show, stays, verb
from nyala.cli.servers import SetOption, option_flags
from nyala.common.texts.counted import counted

app = typer.Typer(no_args_is_help=True, help="Replicas of a stopped server.")
cmeta = typer.Typer(no_args_is_help=True, help="A replica's consensus metadata.")
app.add_typer(cmeta, name="cmeta")

CATALOG = "catalog"
Group = Annotated[
    str, typer.Argument(help=f"Tablet id; '{CATALOG}' for the masters' replica of the catalog.")
]


def _group(text: str) -> Any:
    from nyala.common.ids import SYS_CATALOG, TabletId
    from nyala.wal.segments.format import group_bytes

    if text == CATALOG:
        return SYS_CATALOG
    group_bytes(text)
    return TabletId(text)


@app.command("list")
@verb
def list_replicas(dir: ServerDir, format: FormatOption = Format.TABLE) -> None:
    """List the replicas in a data directory; works while the server runs."""
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection

    files = SystemFiles()
    inspection.owner(files, dir)
    rows = [
        (r.group, r.stage, r.term, r.vote or "", str(r.config), r.members, r.error)
        for r in inspection.replicas(files, dir)
    ]
    show(("tablet", "stage", "term", "vote", "config", "members", "error"), rows, format)


@app.command("copy_from_remote")
@verb
@stays(FILES)
def copy_from_remote(
    tablet: Group,
    source: Annotated[str, typer.Argument(help="Public address of a server with the replica.")],
    dir: ServerDir,
    role: Annotated[
        ServerRole | None,
        typer.Option("--role", help="Role of the server; required for an empty directory."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also from a replica that may lack acknowledged writes.")
    ] = False,
    set: SetOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Copy a replica from a running server; a replica that is not up to date is rejected."""
    import os

    from nyala.common.options import Options
    from nyala.env.env import Env
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection
    from nyala.offline.copy import StoppedServer, copy_to_directory
    from nyala.operate.run import run_alone
    from nyala.replica.copy.protocol import CopyProgress

    group = _group(tablet)
    options = Options.load(None, os.environ, option_flags(set))
    kind = role.value if role else inspection.owner(SystemFiles(), dir).role

    reported = 0

    def on_progress(progress: CopyProgress) -> None:
        nonlocal reported
        tenths = 10 * progress.bytes_done // max(1, progress.bytes_total)
        if tenths > reported:
            reported = tenths
            say(f"{progress.bytes_done:,} of {progress.bytes_total:,} bytes of files")

    async def work(env: Env) -> CopyProgress:
        server = StoppedServer(env, options, dir, kind)
        return await copy_to_directory(server, group, source, force=force, on_progress=on_progress)

    say(f"copying {group} from {source} into {dir} of the {kind}")
    done = run_alone(work, source)
    if done.may_lose:
        say(f"what may be lost: {done.may_lose}")
    facts = {
        "tablet": group, "source": source, "bytes": done.bytes_done, "log_bytes": done.log_bytes,
        "last": str(done.last), "may_lose": done.may_lose,
    }  # fmt: skip
    if format is Format.JSON:
        print_json(facts)
    else:
        print(f"copied {done.bytes_done + done.log_bytes:,} bytes, entries up to {done.last}")


@app.command("delete")
@verb
@stays(FILES)
def delete(
    tablet: Group, dir: ServerDir, set: SetOption = None, format: FormatOption = Format.TABLE
) -> None:
    """Delete a replica's data and log; its vote and last op id are kept in a tombstone."""
    import os

    from nyala.common.options import Options
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection
    from nyala.offline.copy import StoppedServer, delete_in_directory
    from nyala.operate.run import run_alone

    group = _group(tablet)
    owner = inspection.owner(SystemFiles(), dir)
    options = Options.load(None, os.environ, option_flags(set))
    say(f"deleting the replica of {group} in {dir}, the {owner.role} {owner.uuid}'s")
    deleted = run_alone(
        lambda env: delete_in_directory(StoppedServer(env, options, dir, owner.role), group)
    )
    if format is Format.JSON:
        print_json({"tablet": group, "deleted": deleted}, line=True)
    else:
        print("deleted" if deleted else "nothing to do: it was deleted before")


@app.command("unsafe_recover")
@verb
@stays(FILES)
def unsafe_recover(
    tablet: Group,
    dir: ServerDir,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what it would do.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    set: SetOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a LOST replica the only member of its group, from its files. Unsafe: read the page first.

    For a tablet without any working replica. All operations that are not in its files are lost.
    """
    import os

    from nyala.cli.recovery_text import facts, show_plan
    from nyala.common.options import Options
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection
    from nyala.offline.copy import StoppedServer, recover_in_directory
    from nyala.offline.recovery import RecoveryPlan
    from nyala.operate.run import run_alone

    group = _group(tablet)
    owner = inspection.owner(SystemFiles(), dir)
    options = Options.load(None, os.environ, option_flags(set))
    seen: list[RecoveryPlan] = []

    def agree(left: RecoveryPlan) -> bool:
        seen.append(left)
        if not left.done:
            show_plan(left, dir)
        if left.done or dry_run:
            return False
        question = f"Discard all entries after {left.last} of {group}?"
        if not yes and not typer.confirm(question, err=True):
            raise fail("nothing was changed", 1)
        return True

    backup = run_alone(
        lambda env: recover_in_directory(StoppedServer(env, options, dir, owner.role), group, agree)
    )
    (left,) = seen
    if format is Format.JSON:
        print_json(facts(left, backup))
    elif backup:
        print(
            f"{group} continues from entry {left.last} with {counted(left.rows, 'row')} in its files, on "
            f"{owner.uuid} only"
        )
        print(f"start the server; the previous metadata is kept as {backup}")
    else:
        print(
            f"nothing {'to do: it is the only member' if left.done else 'was changed: --dry-run'}"
        )


@cmeta.command("print_replica_uuids")
@verb
def print_replica_uuids(tablet: Group, dir: ServerDir, format: FormatOption = Format.TABLE) -> None:
    """Print the members of a replica's committed configuration; works while the server runs."""
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection

    known = inspection.stopped_replica(SystemFiles(), dir, _group(tablet))
    rows = [
        (m.uuid, m.address, m.peer_address, m.voter, m.electable, m.uuid == known.server.uuid)
        for m in known.config.members
    ]
    show(("uuid", "address", "peer_address", "voter", "electable", "here"), rows, format)


@cmeta.command("rewrite_raft_config")
@verb
@stays(FILES)
def rewrite_raft_config(
    tablet: Group,
    peers: Annotated[
        list[str],
        typer.Argument(
            help="All members: UUID:HOST:PORT/PEER_HOST:PEER_PORT, or the UUID of a current member."
        ),
    ],
    dir: ServerDir,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also replace a configuration that may still be committed."),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Replace the committed configuration of a replica; repeat it on every server that has one."""
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection, rewrite_config

    files, group = SystemFiles(), _group(tablet)
    inspection.lock(files, dir)
    inspection.changeable(files, dir, group)
    known = inspection.stopped_replica(files, dir, group)
    members = [rewrite_config.member(p, known.config) for p in peers]
    after = rewrite_config.rewritten(known, group, members, force=force)
    for what, config in (("from", known.config), ("to", after)):
        for m in config.members:
            say(f"{what:5} {m.uuid} {m.address}/{m.peer_address}")
    if len(after.voters) % 2 == 0:
        say(
            f"note: {len(after.voters)} voters tolerate no more failures than {len(after.voters) - 1}"
        )
    _print_backup(rewrite_config.rewrite(files, dir, group, known, after), format)


@cmeta.command("set_term")
@verb
@stays(FILES)
def set_term(
    tablet: Group,
    term: Annotated[int, typer.Argument(help="New term, higher than the current one.")],
    dir: ServerDir,
    format: FormatOption = Format.TABLE,
) -> None:
    """Raise the term of a replica; its vote in that term is empty."""
    from nyala.env.files import SystemFiles
    from nyala.offline import inspection, rewrite_config

    files, group = SystemFiles(), _group(tablet)
    inspection.lock(files, dir)
    inspection.changeable(files, dir, group)
    known = inspection.stopped_replica(files, dir, group)
    say(f"from  term {known.hard_state.term}, vote {known.hard_state.vote or 'none'}")
    say(f"to    term {term}, vote none")
    _print_backup(rewrite_config.set_term(files, dir, group, known, term), format)


def _print_backup(backup: str, format: Format) -> None:
    if format is Format.JSON:
        print_json({"changed": bool(backup), "backup": backup}, line=True)
    elif backup:
        print(f"rewritten; the previous file is kept as {backup}")
    else:
        print("nothing to do: the file has these values already")
