"""`nyala table list|describe|scan|follow|holds|locate_row|statistics|delete_rows|update_rows|drop`.

`table_alter.py` has the other commands.
"""

import json
from decimal import Decimal
from typing import Annotated, Any

import typer

from nyala.cli.output import (
    ROWS,
    TABLES,
    AtOption,
    Format,
    FormatOption,
    MastersOption,
    fail,
    listed,
    moment_of,
    print_json,
    say,
    show,
    stays,
    verb,
)
from nyala.cli.table_alter import Name, parse_value
from nyala.common.texts.counted import counted

app = typer.Typer(no_args_is_help=True, help="Tables.")
Where = Annotated[
    str, typer.Option(help="Rows, for instance: \"value > 3 and host = 'a'\"; 'true' for all.")
]
After = Annotated[
    str,
    typer.Option(
        help="Position that an earlier call ended with; continue after it, with its --at."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]


@app.command("list")
@verb
def list_tables(
    masters: MastersOption = "",
    dropped: Annotated[
        bool, typer.Option("--dropped", help="List dropped tables that can be recalled.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List all tables."""
    from nyala.operate.run import connected

    tables = connected(masters, lambda core: core.tables(dropped=dropped))
    rows = [(t.name, t.state, t.tablets, t.replicas, t.id) for t in tables]
    show(("table", "state", "tablets", "replicas", "id"), rows, format)


@app.command("describe")
@verb
def describe(name: Name, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """Show columns, partitions and replicas of a table."""
    from nyala.client import connect
    from nyala.common.partitioning.partition import describe as words
    from nyala.common.values.python_values import python_of

    with connect(masters) as client:
        table = client.table(name)
        schema, tablets = table.definition, table.tablets()
        described = client.describe(name)
        servers = {s.address: s for s in client.servers()}
    columns = [
        (c.name, str(c.type), "key" if c.id in schema.key_ids else "", c.nullable,
         None if c.default is None else python_of(c.default), c.immutable)
        for c in schema.columns
    ]  # fmt: skip
    places = [
        (t.id, words(schema, described.partition, t.partition), t.leader or "none",
         ", ".join(a + ("" if a in servers and servers[a].alive else " (dead)") for _, a in t.replicas))
        for t in tablets
    ]  # fmt: skip
    column_names = ("column", "type", "key", "nullable", "default", "immutable")
    place_names = ("tablet", "partition", "leader", "replicas")
    if format is Format.JSON:
        print_json({
            "name": name, "id": described.id, "state": described.state, "replicas": described.replicas,
            "options": described.options, "comment": described.comment, "bytes": described.bytes,
            "columns": [dict(zip(column_names, c, strict=True)) for c in columns],
            "tablets": [dict(zip(place_names, p, strict=True)) for p in places],
        })  # fmt: skip
        return
    if format is Format.TABLE:
        replicas = counted(described.replicas, "replica")
        text = f"table {name}, {described.state}, {replicas}{described.size_text}"
        print(f"{text}, id {described.id}")
    show(column_names, columns, format)
    show(place_names, places, format)


@app.command("scan")
@verb
def scan(
    name: Name,
    masters: MastersOption = "",
    columns: Annotated[
        str, typer.Option(help="Columns, separated by commas; all if not given.")
    ] = "",
    where: Annotated[str, typer.Option(help="For instance: \"value > 3 and host = 'a'\"")] = "",
    at: AtOption = "",
    limit: Annotated[int, typer.Option(help="Maximum number of rows; 0 for all.")] = 100,
    order: Annotated[bool, typer.Option("--order", help="Sort by primary key.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of rows.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print rows of a table."""
    from nyala.client import connect
    from nyala.common.values.python_values import list_of

    moment = moment_of(at)
    with connect(masters) as client:
        table = client.table(name)
        names = listed(columns) or None
        most = limit + 1 if limit > 0 and not count else limit  # one more: are there others?
        wanted = table.scan(names, where or None, moment, None if count else most or None, order)
        if count:
            print(wanted.count())
            return
        found = wanted.to_arrow()
    rows = found.slice(0, limit) if limit else found
    show(rows.schema.names, list(zip(*map(list_of, rows.columns), strict=True)), format, data=True)
    if rows.num_rows < found.num_rows:
        say(f"only {limit} rows are printed, and the table has more; --limit 0 prints all")


@app.command("follow")
@verb
def follow(
    name: Name,
    masters: MastersOption = "",
    since: Annotated[
        int, typer.Option(min=0, help="Hybrid time after which changes are printed; 0: now.")
    ] = 0,
    columns: Annotated[
        str, typer.Option(help="Columns beside the key, separated by commas; all if not given.")
    ] = "",
    where: Annotated[str, typer.Option(help="For instance: \"value > 3 and host = 'a'\"")] = "",
    before: Annotated[
        bool, typer.Option("--before", help="Print the values before each change, as `_before`.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Number of changes after which it ends; 0: it does not.")
    ] = 0,
) -> None:
    """Print the changes of a table as they are made, one JSON object a line, until it is interrupted."""
    from nyala.client import connect
    from nyala.common.values.python_values import list_of

    names = listed(columns) or None
    with connect(masters) as client:
        table = client.table(name)
        feed = table.follow(since or None, columns=names, where=where or None, before=before)
        printed, through = 0, feed.position
        try:
            for batch in feed:
                fields = batch.schema.names
                for row in zip(*map(list_of, batch.rows.columns), strict=True):
                    print_json(dict(zip(fields, row, strict=True)), line=True)
                    printed += 1
                    if printed == limit:
                        return
                through = batch.through
        finally:
            feed.close()
            say(f"all changes through {through} were printed; continue with --since {through}")


@app.command("holds")
@verb
def holds(name: Name, masters: MastersOption = "", format: FormatOption = Format.TABLE) -> None:
    """List the holds of a table's history: of readers, follow-... of feeds, spark-... of Spark streams."""
    from dataclasses import astuple

    from nyala.operate.run import connected
    from nyala.operate.tablets import HOLDS, table_holds

    rows = connected(masters, lambda core: table_holds(core, name))
    show(HOLDS, [astuple(row) for row in rows], format)


@app.command("locate_row")
@verb
def locate_row(
    name: Name,
    key: Annotated[
        str,
        typer.Argument(
            help="JSON: the key's values as an object or, in key order, a list; or one value."
        ),
    ],
    masters: MastersOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the tablet of a primary key, and whether there is a row with it."""
    from dataclasses import astuple

    from nyala.operate.run import connected
    from nyala.operate.tablets import LISTED, tablet_of_key

    try:
        given = json.loads(key, parse_float=Decimal)
    except ValueError as err:
        raise fail(
            f"the key {key[:80]!r} is not valid JSON: {err}; write for instance '[\"a\", 5]'", 2
        ) from None
    values = given if isinstance(given, list | dict) else [given]
    row, exists = connected(masters, lambda core: tablet_of_key(core, name, values, parse_value))
    show((*LISTED, "row_exists"), [(*astuple(row), exists)], format)


@app.command("statistics")
@verb
def statistics(
    name: Name, masters: MastersOption = "", format: FormatOption = Format.TABLE
) -> None:
    """Show live rows and bytes of each tablet of a table, and their sums."""
    from dataclasses import astuple

    from nyala.operate.run import connected
    from nyala.operate.tablets import SIZES, table_sizes

    sizes = connected(masters, lambda core: table_sizes(core, name))
    rows = sum(s.rows or 0 for s in sizes)
    size, every = sum(s.bytes or 0 for s in sizes), sum(s.replica_bytes for s in sizes)
    silent = [s.tablet for s in sizes if s.rows is None]
    if format is Format.JSON:
        tablets = [dict(zip(SIZES, astuple(s), strict=True)) for s in sizes]
        sums = {"rows": rows, "bytes": size, "replica_bytes": every, "silent": silent}
        print_json({"table": name, **sums, "tablets": tablets})
    else:
        show(SIZES, [astuple(s) for s in sizes], format)
    if format is Format.TABLE:
        print(
            f"table {name}: {counted(rows, 'row')}, {counted(size, 'byte')} in "
            f"{counted(len(sizes), 'tablet')}; {counted(every, 'byte')} with all replicas"
        )
    if silent:
        raise fail(
            f"the sums lack {counted(len(silent), 'tablet')} whose leader does not answer: "
            f"{', '.join(silent)}; see nyala cluster ksck"
        )


@app.command("delete_rows")
@verb
@stays(ROWS)
def delete_rows(
    name: Name,
    where: Where,
    masters: MastersOption = "",
    at: AtOption = "",
    after: After = "",
    yes: Yes = False,
) -> None:
    """Delete the rows that a condition selects at one snapshot."""
    _change_rows(name, where, masters, at, after, yes, None)


@app.command("update_rows")
@verb
@stays(ROWS)
def update_rows(
    name: Name,
    where: Where,
    set: Annotated[
        list[str],
        typer.Option(
            help='COLUMN=EXPRESSION, once per column: "price=price * 1.1", "state=\'done\'".'
        ),
    ],
    masters: MastersOption = "",
    at: AtOption = "",
    after: After = "",
    yes: Yes = False,
) -> None:
    """Set columns of the rows that a condition selects at one snapshot."""
    from nyala.client import expr

    values = {}
    for one in set:
        column, sign, text = one.partition("=")
        if not sign or column.strip() in values:
            raise fail(f"--set {one!r}: write COLUMN=EXPRESSION, once for each column", 2)
        values[column.strip()] = expr(text)
    _change_rows(name, where, masters, at, after, yes, values)


def _change_rows(
    name: str,
    where: str,
    masters: str,
    at: str,
    after: str,
    yes: bool,
    values: dict[str, Any] | None,
) -> None:
    """Count the rows of a snapshot, ask, and change them; values None: delete them."""
    from nyala.client import connect
    from nyala.client.modify.values import Assignments

    moment, what = moment_of(at), "Delete" if values is None else "Update"
    with connect(masters) as client:
        table = client.table(name)
        if values is not None:
            Assignments(table.definition, values)
        if after and moment is None:
            raise fail("--after belongs to a snapshot; give --at of the same call too", 2)
        with table.hold(moment) as hold:
            found = table.scan(where=where, at=hold.at).count()
            asked = f"{what} {found:,} of {counted(table.scan(at=hold.at).count(), 'row')} of table {name}?"
            if not (yes or typer.confirm(asked)):
                raise fail("nothing was changed", 1)
            from_here: dict[str, Any] = {"at": hold.at, "after": after or None, "progress": True}
            try:
                if values is None:
                    done = table.delete_where(where, **from_here)
                else:
                    done = table.update_where(where, values, **from_here)
            except KeyboardInterrupt as err:
                raise fail(f"interrupted: {err.__cause__ or 'nothing was changed'}", 130) from None
    print(f"{what.lower()}d {counted(done.changed, 'row')} of table {name}")
    if done.missing:
        say(f"{done.missing} rows were deleted by others before")
    for error in done.errors.slice(0, 5).to_pylist():
        say(f"a row had no effect: {error}")
    if done.failed:
        raise fail(
            f"{done.failed} rows had no effect because of row errors; {what.lower()} them again"
        )


@app.command("drop")
@verb
@stays(TABLES)
def drop(
    name: Name,
    masters: MastersOption = "",
    yes: Yes = False,
    reserve_seconds: Annotated[
        int,
        typer.Option(min=0, help="Seconds for which it can be recalled; 0: it is deleted at once."),
    ] = 0,
) -> None:
    """Drop a table and its data."""
    from nyala.client import connect

    with connect(masters) as client:
        client.table(name)
        if not yes and not typer.confirm(f"Drop table {name} and all its data?"):
            raise fail("nothing was dropped", 1)
        client.drop_table(name, reserve_seconds=reserve_seconds)
    print(f"dropped {name}")
