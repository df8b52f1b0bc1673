"""`nyala sql`: one query over the tables of a cluster."""

from typing import Annotated

import typer

from nyala.cli.output import AtOption, Format, FormatOption, MastersOption, moment_of, show, verb


@verb
def sql(
    query: Annotated[str, typer.Argument(help='For instance: "select count(*) from metrics"')],
    masters: MastersOption = "",
    at: AtOption = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Run a SQL query (DuckDB) at one snapshot and print its rows."""
    from nyala.client import connect
    from nyala.common.values.python_values import list_of

    with connect(masters) as client:
        rows = client.sql(query, at=moment_of(at))
    show(rows.schema.names, list(zip(*map(list_of, rows.columns), strict=True)), format, data=True)
