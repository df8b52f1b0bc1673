"""`nyala table` commands that alter a table, named as in Kudu; each is one step and commits at once."""

import json
from typing import Annotated, Any

import typer

from nyala.cli.output import TABLES, MastersOption, stays, verb

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="Name of the table.")]
Column = Annotated[str, typer.Argument(help="Name of the column.")]
Default = Annotated[
    str | None,
    typer.Option("--default", help="Default, as text, of rows that do not set the column."),
]
Lower = Annotated[
    str, typer.Argument(help="Lower bound, inclusive, as JSON: 10, '[\"a\", 1]'; null: open.")
]
Upper = Annotated[str, typer.Argument(help="Upper bound, exclusive, as JSON; null: open.")]


def parse_value(text: str | None, kind: Any) -> Any:
    """Parse a text as a value of an Arrow type."""
    import pyarrow as pa

    from nyala.common.errors import InvalidArgument

    if text is None:
        return None
    try:
        return pa.array([text], pa.string()).cast(kind)[0]
    except pa.ArrowException as err:
        raise InvalidArgument(
            f"{text[:80]!r} is not a valid {kind}: {err}; give a value of that type"
        ) from err


def parse_bound(text: str, kinds: list[Any]) -> Any:
    """Parse a range bound from JSON: one value, or a list of one for each range column."""
    from nyala.common.errors import InvalidArgument

    try:
        given = json.loads(text)
    except ValueError as err:
        raise InvalidArgument(
            f"the bound {text[:80]!r} is not valid JSON: {err}; write a number, or a string in "
            "double quotes within "
            "single ones: '\"a\"'"
        ) from err
    if given is None:
        return None
    values = given if isinstance(given, list) else [given]
    ends = list(zip(values, kinds, strict=False))
    whole = [parse_value(v, k) if isinstance(v, str) else v for v, k in ends]
    return tuple(whole) if len(values) == len(kinds) else given


def _range(name: str, lower: str, upper: str, masters: str, method: str) -> None:
    from nyala.client import connect

    with connect(masters) as client:
        table = client.table(name)
        partition = client.describe(name).partition
        kinds = [table.definition.by_id[i].type for i in partition.range_column_ids]
        step = table.alter()
        getattr(step, method)(parse_bound(lower, kinds), parse_bound(upper, kinds))
        step.commit()
    print(f"altered {name}")


def _alter(name: str, masters: str, method: str, *arguments: Any, **more: Any) -> None:
    from nyala.client import connect

    with connect(masters) as client:
        step = client.table(name).alter()
        getattr(step, method)(*arguments, **more)
        step.commit()
    print(f"altered {name}")


@app.command("add_column")
@verb
@stays(TABLES)
def add_column(
    name: Name,
    column: Column,
    type: Annotated[str, typer.Argument(help="int64, string, decimal(18,4), timestamp[us], ...")],
    masters: MastersOption = "",
    default: Default = None,
    not_null: Annotated[
        bool, typer.Option("--not-null", help="Disallow nulls; requires a default.")
    ] = False,
    comment: Annotated[str, typer.Option(help="Comment.")] = "",
) -> None:
    """Add a column; existing rows get its default, or null."""
    from nyala.common.types import arrow_type

    kind = arrow_type(type)
    _alter(name, masters, "add_column", column, kind, nullable=not not_null,
           default=parse_value(default, kind), comment=comment)  # fmt: skip


@app.command("delete_column")
@verb
@stays(TABLES)
def delete_column(name: Name, column: Column, masters: MastersOption = "") -> None:
    """Drop a column; reads at earlier times have it as long as history is kept."""
    _alter(name, masters, "drop_column", column)


@app.command("rename_column")
@verb
@stays(TABLES)
def rename_column(
    name: Name,
    column: Column,
    new_name: Annotated[str, typer.Argument(help="Its new name.")],
    masters: MastersOption = "",
) -> None:
    """Rename a column, which may be a key column."""
    _alter(name, masters, "rename_column", column, new_name)


@app.command("column_set_default")
@verb
@stays(TABLES)
def column_set_default(
    name: Name,
    column: Column,
    default: Annotated[str, typer.Argument(help="As text.")],
    masters: MastersOption = "",
) -> None:
    """Change the default of a column, for new rows that do not set it."""
    from nyala.client import connect

    with connect(masters) as client:
        table = client.table(name)
        value = parse_value(default, table.definition.column(column).type)
        table.alter().set_default(column, value).commit()
    print(f"altered {name}")


@app.command("column_remove_default")
@verb
@stays(TABLES)
def column_remove_default(name: Name, column: Column, masters: MastersOption = "") -> None:
    """Remove the default of a column: new rows that do not set it get null."""
    _alter(name, masters, "set_default", column, None)


@app.command("column_set_comment")
@verb
@stays(TABLES)
def column_set_comment(
    name: Name,
    column: Column,
    comment: Annotated[str, typer.Argument(help="Comment.")],
    masters: MastersOption = "",
) -> None:
    """Change the comment of a column."""
    _alter(name, masters, "set_comment", comment, column)


@app.command("set_comment")
@verb
@stays(TABLES)
def set_comment(
    name: Name,
    comment: Annotated[str, typer.Argument(help="Comment.")],
    masters: MastersOption = "",
) -> None:
    """Change the comment of a table."""
    _alter(name, masters, "set_comment", comment)


@app.command("set_owner")
@verb
@stays(TABLES)
def set_owner(
    name: Name,
    owner: Annotated[str, typer.Argument(help="Name of the owner.")],
    masters: MastersOption = "",
) -> None:
    """Change the owner of a table."""
    _alter(name, masters, "set_owner", owner)


@app.command("set_extra_config")
@verb
@stays(TABLES)
def set_extra_config(
    name: Name,
    key: Annotated[
        str, typer.Argument(help="history_max_age_s, compression, max_bytes, witness_first.")
    ],
    value: Annotated[str, typer.Argument(help="Value; '' resets the option.")],
    masters: MastersOption = "",
) -> None:
    """Change an option of a table."""
    _alter(name, masters, "set_options", {key: value or None})


@app.command("set_replication_factor")
@verb
@stays(TABLES)
def set_replication_factor(
    name: Name,
    replicas: Annotated[
        int, typer.Argument(help="Number of replicas: odd, at most the number of live servers.")
    ],
    masters: MastersOption = "",
) -> None:
    """Change the number of replicas of each tablet; the masters add or remove them one at a time."""
    _alter(name, masters, "set_replicas", replicas)


@app.command("rename_table")
@verb
@stays(TABLES)
def rename_table(
    name: Name,
    new_name: Annotated[str, typer.Argument(help="Its new name.")],
    masters: MastersOption = "",
) -> None:
    """Rename a table."""
    _alter(name, masters, "rename", new_name)


@app.command("add_range_partition")
@verb
@stays(TABLES)
def add_range_partition(
    name: Name, lower: Lower, upper: Upper, masters: MastersOption = ""
) -> None:
    """Add a range partition."""
    _range(name, lower, upper, masters, "add_range")


@app.command("drop_range_partition")
@verb
@stays(TABLES)
def drop_range_partition(
    name: Name, lower: Lower, upper: Upper, masters: MastersOption = ""
) -> None:
    """Drop a range partition, given its exact bounds, with all its rows."""
    _range(name, lower, upper, masters, "drop_range")


@app.command("recall")
@verb
@stays(TABLES)
def recall(
    table_id: Annotated[str, typer.Argument(help="Id shown by: nyala table list --dropped")],
    masters: MastersOption = "",
    new_name: Annotated[
        str, typer.Option("--name", help="New name; the old one if not given.")
    ] = "",
) -> None:
    """Restore a table that was dropped with --reserve-seconds."""
    from nyala.client import connect

    with connect(masters) as client:
        table = client.recall_table(table_id, new_name or None)
        print(f"recalled {table.name}")
