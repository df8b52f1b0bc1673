"""`nyala journal dump|verify`."""

from functools import partial
from typing import Annotated

import typer

from nyala.cli.journal.journals import MaxAge, Name
from nyala.cli.output import Format, FormatOption, MastersOption, fail, print_json, show, verb

app = typer.Typer()


@app.command("dump")
@verb
def dump(name: Name, masters: MastersOption = "", max_age_ms: MaxAge = 0) -> None:
    """Print all valid entries and keys, one JSON object a line; data are base64."""
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions
    from nyala.client.journal.core import JournalCore
    from nyala.client.journal.pages import content_pages, key_pages

    connection = Connection(masters, ClientOptions())
    try:
        core = JournalCore(connection.core)
        journal = connection.run(core.open(name))
        read = partial(core.reads.read, journal, max_age_ms=max_age_ms)
        created = 0
        for found in connection.iterate_pages(content_pages(read)):
            log = found.log
            if log.created != created:
                created = log.created
                print_json({"log": log.name, "created": created, "last": log.last}, line=True)
            for entry in found.entries:
                print_json({"log": log.name, "id": entry.id, "data": entry.data}, line=True)
        for key in connection.iterate_pages(key_pages(core.reads, journal, "", max_age_ms)):
            line = {"key": key.name, "version": key.version, "value": key.value or b""}
            print_json(line, line=True)
    finally:
        connection.close()


@app.command("verify")
@verb
def verify(
    name: Name,
    masters: MastersOption = "",
    attempts: Annotated[
        int, typer.Option(min=1, help="Readings of a replica while the journal changes.")
    ] = 10,
    format: FormatOption = Format.TABLE,
) -> None:
    """Read all of a journal from each replica, check the order of its ids, and compare."""
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions
    from nyala.client.journal.core import JournalCore
    from nyala.client.journal.verify import verify as read_all

    connection = Connection(masters, ClientOptions())
    try:
        core = JournalCore(connection.core)
        journal = connection.run(core.open(name))
        readings = connection.run(read_all(connection.core.env, core, journal, attempts))
    finally:
        connection.close()
    columns = ("address", "last", "logs", "entries", "keys", "digest", "problem")
    show(columns, [tuple(getattr(r, c) for c in columns) for r in readings], format, data=True)
    digests = {(r.last, r.digest) for r in readings if not r.problem}
    if any(r.problem for r in readings) or len(digests) != 1:
        raise fail(
            f"the replicas of journal {name} are not known to be equal; if it changes all the time, try "
            "again with more --attempts, or compare them by: nyala cluster ksck --checksum",
            1,
        )
