"""`nyala`: the groups of commands.

To start quickly, each command imports what it needs when it runs.
"""

import sys
from typing import Annotated

import typer

from nyala.cli import (
    cluster,
    fs,
    local,
    local_replica,
    masters,
    ops,
    pipeline,
    remote_replica,
    servers,
    sql,
    table,
    table_alter,
    tablet,
    tablet_unsafe,
    tservers,
    wal,
)
from nyala.cli.backups import backup, restore
from nyala.cli.journal import dump, journals, logs
from nyala.cli.output import take_streams
from nyala.cli.ram import local as ram
from nyala.cli.recovery import doctor, master_rebuild
from nyala.cli.security import audit, ca, cert, grants, join, login, token, user, web
from nyala.cli.suggest import Tree
from nyala.cli.tools import chaos, diagnose, log_level, pbc, perf
from nyala.cli.transactions import txn
from nyala.common.version import VERSION

app = typer.Typer(
    name="nyala", cls=Tree, no_args_is_help=True, add_completion=True,
    pretty_exceptions_enable=False, help="""A replicated, mutable, columnar table store.

    Start with: nyala up. Every group and command has --help.""",
)  # fmt: skip
app.command("up")(local.up)
app.command("status")(local.status)
app.command("down")(local.down)
app.command("web")(web.web)
app.command("init")(cert.init)
app.add_typer(cert.app, name="cert")
app.add_typer(ca.app, name="ca")
app.add_typer(token.app, name="token")
user.app.add_typer(grants.app)
app.add_typer(user.app, name="user")
app.command("login")(login.login)
app.command("logout")(login.logout)
app.add_typer(audit.app, name="audit")
app.command("sql")(sql.sql)
app.add_typer(ops.app, name="ops")
app.command("doctor")(doctor.doctor)
table.app.add_typer(table_alter.app)
app.add_typer(table.app, name="table")
journals.app.add_typer(logs.app)
journals.app.add_typer(dump.app)
app.add_typer(journals.app, name="journal")
app.add_typer(ram.app, name="ram")
app.add_typer(txn.app, name="txn")
app.add_typer(backup.app, name="backup")
app.command("restore")(restore.restore)
app.add_typer(cluster.app, name="cluster")
app.add_typer(perf.app, name="perf")
app.add_typer(chaos.app, name="chaos")
app.add_typer(diagnose.app, name="diagnose")
app.add_typer(pbc.app, name="pbc")
app.add_typer(pipeline.app, name="pipeline")
masters.register(servers.master)
master_rebuild.register(servers.master)
app.add_typer(servers.master, name="master")
tservers.register(servers.tserver)
join.register(servers.tserver, servers.master)
log_level.register(servers.tserver, servers.master)
app.add_typer(servers.tserver, name="tserver")
app.add_typer(servers.config, name="config")
app.add_typer(wal.app, name="wal")
app.add_typer(fs.app, name="fs")
app.add_typer(local_replica.app, name="local_replica")
app.add_typer(remote_replica.app, name="remote_replica")
tablet_unsafe.register(tablet.app)
app.add_typer(tablet.app, name="tablet")


@app.command("version")
def version() -> None:
    """Print the version."""
    print(VERSION)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the group or command."""


def main() -> None:
    """Run the command line."""
    take_streams()
    try:
        app(prog_name="nyala")
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
