"""`nyala journal create|list|describe|drop|recall|get|set|delete|keys`; logs are in `logs.py`."""

import sys
from typing import Annotated

import typer

from nyala.cli.output import (
    JOURNALS,
    Format,
    FormatOption,
    MastersOption,
    fail,
    print_json,
    show,
    stays,
    verb,
)

app = typer.Typer(no_args_is_help=True, help="Journals: replicated logs, and keys with versions.")
Name = Annotated[str, typer.Argument(help="Name of the journal.")]
KeyName = Annotated[str, typer.Argument(help="Key.")]
MaxAge = Annotated[
    int,
    typer.Option(
        "--max-age-ms", min=0, help="Largest age of what any replica may answer; 0: linearizable."
    ),
]

Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask before something is deleted, unless `yes`.

    Raises:
        typer.Exit: the answer is no.
    """
    if not yes and not typer.confirm(question, err=True):
        raise fail("nothing was deleted", 1)


def text_of(data: bytes) -> str:
    """Return data as readable text; bytes that are not UTF-8 as Python's escapes."""
    return data.decode("utf-8", "backslashreplace")


def data_of(given: str | None) -> bytes:
    """Return data from an argument, or from standard input."""
    return sys.stdin.buffer.read() if given is None else given.encode("utf-8", "surrogateescape")


@app.command("create")
@verb
@stays(JOURNALS)
def create(
    name: Name,
    masters: MastersOption = "",
    replicas: Annotated[int, typer.Option(help="Odd number of replicas.")] = 3,
    journal_bytes: Annotated[
        int, typer.Option("--journal-bytes", help="Most bytes of valid entries and keys.")
    ] = 1 << 30,
) -> None:
    """Create a journal."""
    from nyala.client import connect

    with connect(masters) as client:
        client.create_journal(name, replicas, journal_bytes)
    print(f"created {name}")


@app.command("list")
@verb
def list_journals(
    masters: MastersOption = "",
    dropped: Annotated[
        bool, typer.Option("--dropped", help="List dropped journals that can be recalled.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List all journals."""
    from nyala.client.journal.core import JournalCore
    from nyala.operate.run import connected

    journals = connected(masters, lambda core: JournalCore(core).summaries(dropped=dropped))
    rows = [(j.name, j.state, j.replicas, j.id) for j in journals]
    show(("journal", "state", "replicas", "id"), rows, format)


@app.command("describe")
@verb
def describe(name: Name, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show size, limit and replicas of a journal."""
    from nyala.client import connect

    with connect(masters) as client:
        journal = client.journal(name)
        tablet, logs = journal.location(), journal.logs()
        keys = sum(1 for _ in journal.list())
        servers = {s.address: s for s in client.servers()}
    replicas = [
        (u, a, "leader" if a == tablet.leader else "", a in servers and servers[a].alive)
        for u, a in tablet.replicas
    ]
    replica_names = ("uuid", "address", "role", "alive")
    facts = {
        "name": name, "id": journal.id, "tablet": tablet.id, "replicas": journal.replicas,
        "journal_bytes": journal.journal_bytes, "logs": len(logs), "keys": keys,
        "entries": sum(g.entries for g in logs), "data_bytes": sum(g.data_bytes for g in logs),
    }  # fmt: skip
    if format is Format.JSON:
        places = [dict(zip(replica_names, r, strict=True)) for r in replicas]
        print_json({**facts, "members": places})
        return
    show(tuple(facts), [tuple(facts.values())], format)
    show(replica_names, replicas, format)


@app.command("drop")
@verb
@stays(JOURNALS)
def drop(
    name: Name,
    masters: MastersOption = "",
    yes: Yes = False,
    reserve_seconds: Annotated[
        int,
        typer.Option(min=0, help="Seconds for which it can be recalled; 0: it is deleted at once."),
    ] = 0,
) -> None:
    """Drop a journal with its logs and keys."""
    from nyala.client import connect

    with connect(masters) as client:
        if not yes and not typer.confirm(f"Drop journal {name} with all its logs and keys?"):
            raise fail("nothing was dropped", 1)
        client.drop_journal(name, reserve_seconds=reserve_seconds)
    print(f"dropped {name}")


@app.command("recall")
@verb
@stays(JOURNALS)
def recall(
    journal_id: Annotated[str, typer.Argument(help="Id of the dropped journal.")],
    masters: MastersOption = "",
    name: Annotated[str, typer.Option(help="New name; not given: the one that it had.")] = "",
) -> None:
    """Restore a dropped journal; `nyala journal list --dropped` lists them."""
    from nyala.client import connect

    with connect(masters) as client:
        journal = client.recall_journal(journal_id, name or None)
        print(f"recalled {journal.name}")


@app.command("get")
@verb
def get(name: Name, key: KeyName, masters: MastersOption = "", max_age_ms: MaxAge = 0) -> None:
    """Print the value of a key, as it is."""
    from nyala.client import connect

    with connect(masters) as client:
        found = client.journal(name).get(key, max_age_ms=max_age_ms)
    if found is None or found.value is None:
        raise fail(f"journal {name} has no key {key!r}", 5)
    sys.stdout.buffer.write(found.value)
    sys.stdout.flush()


@app.command("set")
@verb
@stays(JOURNALS)
def set_(
    name: Name,
    key: KeyName,
    value: Annotated[
        str | None, typer.Argument(help="Value; not given: standard input.", show_default=False)
    ] = None,
    masters: MastersOption = "",
    expected_version: Annotated[
        int | None,
        typer.Option("--expected-version", min=0, help="Version that the key must have; 0: none."),
    ] = None,
) -> None:
    """Give a key a value; print its version."""
    from nyala.client import connect

    with connect(masters) as client:
        print(client.journal(name).set(key, data_of(value), expected_version))


@app.command("delete")
@verb
@stays(JOURNALS)
def delete(
    name: Name,
    key: KeyName,
    masters: MastersOption = "",
    expected_version: Annotated[
        int | None,
        typer.Option("--expected-version", min=0, help="Version that the key must have."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete a key; print the id of the change."""
    from nyala.client import connect

    with connect(masters) as client:
        journal = client.journal(name)
        confirm(f"Delete key {key} of journal {name}?", yes)
        deleted = journal.delete(key, expected_version)
    if not deleted:
        raise fail(f"journal {name} has no key {key!r}", 5)
    print(deleted)


@app.command("keys")
@verb
def keys(
    name: Name,
    prefix: Annotated[str, typer.Argument(help="Prefix of the keys.")] = "",
    masters: MastersOption = "",
    max_age_ms: MaxAge = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """List keys with their values."""
    from nyala.client import connect

    with connect(masters) as client:
        found = list(client.journal(name).list(prefix, max_age_ms=max_age_ms))
    rows = [(k.name, k.version, text_of(k.value or b"")) for k in found]
    show(("key", "version", "value"), rows, format, data=True)
