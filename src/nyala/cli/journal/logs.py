"""`nyala journal logs|append|invalidate|delete-log|read|tail`."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.journal.journals import MaxAge, Name, Yes, confirm, data_of, text_of
from nyala.cli.output import (
    JOURNALS,
    Format,
    FormatOption,
    MastersOption,
    fail,
    print_json,
    say,
    show,
    stays,
    verb,
)

if TYPE_CHECKING:
    from nyala.client.journal.items import Event

app = typer.Typer()
LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]
Expected = Annotated[
    int | None, typer.Option(min=0, help="Last id that the log must have; 0: no such log.")
]
After = Annotated[int, typer.Option(min=0, help="Id; later ones only.")]


@app.command("logs")
@verb
def logs(
    name: Name,
    masters: MastersOption = "",
    max_age_ms: MaxAge = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the logs of a journal."""
    from nyala.client import connect

    with connect(masters) as client:
        found = client.journal(name).logs(max_age_ms=max_age_ms)
    rows = [(g.name, g.entries, g.data_bytes, g.last, g.created) for g in found]
    show(("log", "entries", "data_bytes", "last", "created"), rows, format, data=True)


@app.command("append")
@verb
@stays(JOURNALS)
def append(
    name: Name,
    log: LogName,
    data: Annotated[
        str | None, typer.Argument(help="Data; not given: standard input.", show_default=False)
    ] = None,
    masters: MastersOption = "",
    expected: Expected = None,
    invalidates: Annotated[
        list[int] | None,
        typer.Option(
            "--invalidates", min=1, help="Id of an entry that becomes invalid; repeatable."
        ),
    ] = None,
) -> None:
    """Append an entry to a log; print its id."""
    from nyala.client import connect

    with connect(masters) as client:
        print(client.journal(name).log(log).append(data_of(data), expected, invalidates or ()))


@app.command("invalidate")
@verb
@stays(JOURNALS)
def invalidate(
    name: Name,
    log: LogName,
    ids: Annotated[list[int], typer.Argument(metavar="ID...", min=1, help="Ids of entries.")],
    masters: MastersOption = "",
    expected: Expected = None,
    yes: Yes = False,
) -> None:
    """Make entries of a log invalid: they are not read any more; print the id of the change."""
    from nyala.client import connect

    with connect(masters) as client:
        found = client.journal(name).log(log)
        confirm(f"Invalidate entries of log {log} of journal {name}: {len(ids)}?", yes)
        change = found.invalidate(ids, expected)
    if not change:
        raise fail(f"journal {name} has no log {log!r}", 5)
    print(change)


@app.command("delete-log")
@verb
@stays(JOURNALS)
def delete_log(
    name: Name,
    log: LogName,
    masters: MastersOption = "",
    expected: Expected = None,
    yes: Yes = False,
) -> None:
    """Delete a log with all of its entries; print the id of the change."""
    from nyala.client import connect

    with connect(masters) as client:
        found = client.journal(name).log(log)
        confirm(f"Delete log {log} of journal {name} with all its entries?", yes)
        deleted = found.delete(expected)
    if not deleted:
        raise fail(f"journal {name} has no log {log!r}", 5)
    print(deleted)


@app.command("read")
@verb
def read(
    name: Name,
    log: LogName,
    masters: MastersOption = "",
    after: After = 0,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of entries; 0: all.")] = 100,
    max_age_ms: MaxAge = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print valid entries of a log."""
    from nyala.client import connect

    with connect(masters) as client:
        most = limit + 1 if limit else None  # one more: are there others?
        entries = client.journal(name).log(log).read(after, most, max_age_ms=max_age_ms)
        rows = [(e.id, e.timestamp.isoformat(), text_of(e.data)) for e in entries]
    shown = rows[:limit] if limit else rows
    show(("id", "timestamp", "data"), shown, format, data=True)
    if len(shown) < len(rows):
        say(
            f"only {limit} entries are printed, and the log has more; go on with --after {shown[-1][0]}, "
            "or print all with --limit 0"
        )


@app.command("tail")
@verb
def tail(
    name: Name,
    log: LogName,
    masters: MastersOption = "",
    after: After = 0,
    count: Annotated[
        int, typer.Option(min=0, help="Number of events after which to end; 0: never.")
    ] = 0,
) -> None:
    """Print what changes in a log as it changes, one JSON object a line."""
    from nyala.client import connect

    with connect(masters) as client:
        for number, event in enumerate(client.journal(name).log(log).tail(after), 1):
            print_json(_line(event), line=True)
            if number == count:
                break


def _line(event: "Event") -> dict[str, object]:
    from nyala.client import Entry, Invalidated

    if isinstance(event, Entry):
        return {
            "id": event.id,
            "timestamp": event.timestamp.isoformat(),
            "data": text_of(event.data),
        }
    if isinstance(event, Invalidated):
        return {"id": event.id, "invalidated": list(event.ids)}
    return {"rebased": True, "through": event.through}
