"""`nyala diagnose`: a bundle of the state of all servers, and a summary of one."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import Format, FormatOption, MastersOption, print_json, say, show, stays, verb
from nyala.common.texts.counted import counted

if TYPE_CHECKING:
    from nyala.env.env import Env

app = typer.Typer(no_args_is_help=True, help="Bundles of the state of a cluster.")
LINES = 5
"""Warnings that are printed of each server."""


@app.callback()
def _group() -> None:
    """Bundles of the state of a cluster."""


@app.command("bundle")
@verb
@stays("nothing stays under way, and the file that was begun is removed")
def bundle(
    output: Annotated[str, typer.Argument(help="New file, a zip archive.")],
    masters: MastersOption = "",
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            help="Public address of a further server, if no master leads; may be repeated.",
        ),
    ] = None,
) -> None:
    """Write versions, options, ksck, operations, metrics, threads and last log lines of all servers.

    It has no rows, and no keys, passwords or tokens. It has names of tables, addresses and uuids.
    """
    import json

    from nyala.operate.diagnose.bundle import write
    from nyala.operate.diagnose.collect import MANIFEST, collect
    from nyala.operate.run import client_of, run_alone

    async def work(env: "Env") -> dict[str, bytes]:
        from nyala.client.credentials import credentials_for

        credentials = credentials_for(masters)
        tls = None if credentials is None else credentials.client_context()
        async with client_of(env, masters) as core:
            return await collect(core, tuple(server or ()), tls)

    files = write(output, lambda: run_alone(work, masters))
    for name, reason in json.loads(files[MANIFEST])["missing"].items():
        say(f"not in the bundle: {name}: {reason}")
    say(f"{counted(len(files), 'file')} in {output}; nyala diagnose show {output} prints a summary")


@app.command("show")
@verb
def summary(
    file: Annotated[str, typer.Argument(help="File that `nyala diagnose bundle` made.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Print a summary of a bundle; it asks no server."""
    from dataclasses import asdict

    from nyala.operate.diagnose.bundle import read

    found = read(file)
    if format is Format.JSON:
        print_json(asdict(found))
        return
    rows = [
        (s.server, s.address, s.version, " ".join(s.options), len(s.warnings))
        for s in found.servers
    ]
    show(("server", "address", "version", "changed_options", "warnings"), rows, format, "Servers")
    if format is Format.CSV:
        return
    print(f"made at {found.made_at}; {found.operations} operations were in flight")
    for problem in found.problems:
        print(f"ksck: {problem}")
    for name, finding in found.steps.items():
        print(f"doctor: {name}: {finding}")
    for name, reason in found.missing.items():
        print(f"missing: {name}: {reason}")
    for one in found.servers:
        for line in one.warnings[-LINES:]:
            print(f"{one.server}: {line}")
