"""Frames and temporary views of tables."""

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from nyala.client.checks import check_text
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.hybrid_time import as_stamp
from nyala.spark.carried import login_options
from nyala.spark.clients import process_client
from nyala.spark.options import masters_of
from nyala.spark.session import registered


def read(
    spark: SparkSession,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    at: int | datetime | None = None,
    masters: str | None = None,
    split_bytes: int | None = None,
    hold_s: int | None = None,
) -> DataFrame:
    """Return a frame of a table, which reads at one snapshot.

    Args:
        spark: the session.
        table: name of the table.
        columns: names of the columns that are read; None: all; an empty list: rows without columns, which
            the servers count.
        where: condition on the rows that are read, in the language of `Table.scan`; None: all rows.
        at: hybrid time or aware datetime to read at; None: now.
        masters: addresses of the masters; None: NYALA_MASTERS of the driver.
        split_bytes: approximate number of stored bytes of a partition; None: one partition per tablet.
        hold_s: seconds for which the snapshot stays readable; None: 3600.

    Raises:
        InvalidArgument: an argument of a wrong type, or no masters.
        AnalysisException: Spark's error around one of nyala: no such table or column, a wrong `where`.
    """
    check_text("table", table)
    options = {"table": table, "masters": masters_of(masters)}
    options |= login_options(options["masters"])
    if columns is not None:
        options["columns"] = _list_of(columns)
    if where is not None:
        check_text("where", where)
        options["where"] = where
    if at is not None:
        options["at"] = str(as_stamp(at))
    for name, value in (("split_bytes", split_bytes), ("hold_s", hold_s)):
        if value is not None:
            options[name] = str(value)
    frame = registered(spark).read.format("nyala").options(**options).load()
    return frame if columns is None or columns else frame.select()


def register_views(
    spark: SparkSession,
    tables: Sequence[str] | None = None,
    *,
    at: int | datetime | None = None,
    masters: str | None = None,
) -> dict[str, DataFrame]:
    """Register tables as temporary views of the same names, all at one snapshot.

    A view reads all columns of its table, whatever a query needs of it: `nyala.spark.sql` reads fewer.

    Args:
        spark: the session.
        tables: names of the tables; None: all of the cluster.
        at: hybrid time or aware datetime to read at; None: now.
        masters: addresses of the masters; None: NYALA_MASTERS of the driver.

    Returns:
        The frame of each view.

    Raises:
        NotFound: no such table.
        InvalidArgument: names that differ in case only, which Spark does not distinguish, or no masters.
    """
    addresses = masters_of(masters)
    client = process_client(addresses)
    known = client.tables()
    names = known if tables is None else _listed(tables)
    for name in names:
        if name not in known:
            raise NotFound(f"no table {name!r}; there are: {', '.join(known) or 'none'}")
    check_spellings(names)
    time = as_stamp(at) if at is not None else client.now()
    frames = {name: read(spark, name, at=time, masters=addresses) for name in names}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(quoted(name))
    return frames


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_spellings(names: Sequence[str]) -> None:
    """Refuse names that Spark does not distinguish.

    Raises:
        InvalidArgument: two names differ in case only.
    """
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise InvalidArgument(
                f"the tables {other!r} and {name!r} differ in case only, and Spark SQL does not distinguish "
                "them; rename one, or read it with nyala.spark.read()"
            )


def _list_of(columns: Sequence[str]) -> str:
    names = _listed(columns)
    for name in names:
        if "," in name or name != name.strip():
            raise InvalidArgument(
                f"column {name!r}: the names are passed to Spark as a list with commas, so a name cannot "
                "contain a comma, or begin or end with a space; read all columns, and select it in Spark"
            )
    return ",".join(names)


def _listed(names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise InvalidArgument(f"{names!r}: pass a list of names, [{names!r}]")
    for name in names:
        check_text("name", name)
    return list(names)
