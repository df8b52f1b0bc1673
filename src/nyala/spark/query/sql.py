"""SQL of Spark over tables of a cluster, with pruned columns although a Python source cannot prune.

Spark asks a Python data source for its columns when a frame is loaded, before it knows the query, and keeps
one plan per load. So the query is analysed and optimised over empty relations with the full schemas first,
which starts no process and no task. Then each table is loaded with the columns and rows that the
optimised plan needs, and the same query is analysed again over these.

A view of a table has all of its columns also then: those that the plan does not need are null constants, so
that names, `*`, natural joins and unions by position mean the same in both analyses. The optimised plan gives
the rows of the query for all values of these columns, as it does not read them. For this the columns of the
empty relations are nullable: the optimiser must not conclude anything from a key that is not null.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

from nyala.client.checks import check_text
from nyala.client.client import Client
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp
from nyala.spark.clients import process_client
from nyala.spark.frames.read import check_spellings, quoted
from nyala.spark.options import masters_of
from nyala.spark.query.plan_use import Use, uses_of
from nyala.spark.reader import MAX_PUSHED_CHARACTERS

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_STATEMENTS = (
    f"{_LOGICAL}.Command",
    f"{_LOGICAL}.ParsedStatement",
    f"{_LOGICAL}.CompoundBody",
)
_WRAPPERS = ("UnresolvedWith", "WithCTE")


def sql(
    spark: SparkSession,
    query: str,
    *,
    at: int | datetime | None = None,
    masters: str | None = None,
) -> DataFrame:
    """Return the frame of a query over tables of a cluster, all read at one snapshot.

    Only the columns that the query needs are read, and of the rows those that fulfil the conditions which the
    servers can evaluate. Other temporary views, tables and functions of the session may be used as well. A
    table of the cluster hides a view of the session with its name.

    Args:
        spark: a session in this process; not one of Spark Connect.
        query: one query, `select` or `with`.
        at: hybrid time or aware datetime to read at; None: now.
        masters: addresses of the masters; None: NYALA_MASTERS of the driver.

    Raises:
        InvalidArgument: a session of Spark Connect, a statement that is no query, names of tables that differ
            in case only, or no masters.
        AnalysisException: Spark's own error on a wrong query.
    """
    check_text("query", query)
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise InvalidArgument(
            "nyala.spark.sql() uses the optimiser of a Spark in this process, which Spark Connect does not "
            "give access to; use nyala.spark.read(spark, table, columns=[...], where=...), or "
            "nyala.spark.register_views(spark) and spark.sql(query), which reads all columns"
        )
    addresses = masters_of(masters)
    client = process_client(addresses)
    tables = _named(client.tables(), query)
    time = as_stamp(at) if at is not None else client.now()
    work = _Analysis(spark, session.cloneSession(), query)
    schemas = {name: _schema(client, name, None if at is None else time) for name in tables}
    uses = work.uses(schemas)
    for name, use in uses.items():
        work.load(name, schemas[name], use, {"masters": addresses, "at": str(time)})
    return work.frame()


def _named(tables: Sequence[str], query: str) -> list[str]:
    """Return the tables whose names are in the text of a query; it may use fewer."""
    text = query.lower()
    found = [n for n in tables if n.lower() in text or n.lower().replace("`", "``") in text]
    check_spellings(found)
    return found


def _schema(client: Client, name: str, at: int | None) -> StructType:
    """Return the columns of a table, all of them nullable."""
    stored = client.table(name).scan(at=at).schema
    types = [from_arrow_type(f.type, prefer_timestamp_ntz=True) for f in stored]
    return StructType([StructField(f.name, t) for f, t in zip(stored, types, strict=True)])


class _Analysis:
    """The two analyses of one query, in a session of its own with the views of the user's session.

    Args:
        spark: the user's session.
        session: a clone of it, as an object of Java.
        query: the query.

    Raises:
        InvalidArgument: a statement that is no query.
    """

    def __init__(self, spark: SparkSession, session: Any, query: str) -> None:
        self._spark = spark
        self._session = session
        self._context = spark.sparkContext
        self._jvm: Any = self._context._jvm
        self._parsed = session.sessionState().sqlParser().parsePlan(query)
        self._check()

    def _check(self) -> None:
        plan = self._parsed
        while plan.getClass().getSimpleName() in _WRAPPERS:
            plan = plan.children().apply(0)
        gateway = self._context._gateway
        if any(is_instance_of(gateway, plan, name) for name in _STATEMENTS):
            raise InvalidArgument(
                "nyala.spark.sql() takes one query, select or with; run other statements with spark.sql(), "
                'and write tables with frame.write.format("nyala") or nyala.spark.merge()'
            )

    def uses(self, schemas: dict[str, StructType]) -> dict[str, Use]:
        """Return what the optimised plan needs of each table.

        The optimiser replaces functions such as `now()` by constants, of which a later run of the frame has
        other ones: a query with such a function needs everything.

        Args:
            schemas: columns of each table.
        """
        tables: dict[int, str] = {}
        floats: dict[str, list[str]] = {}
        for name, schema in schemas.items():
            rows = self._context._jsc.emptyRDD()
            columns = self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
            empty = self._session.createDataFrame(rows, columns)
            empty.createOrReplaceTempView(quoted(name))
            tables[empty.queryExecution().analyzed().rdd().id()] = name
            floats[name] = [
                f.name for f in schema if isinstance(f.dataType, FloatType | DoubleType)
            ]
        planned = self._rows().queryExecution()
        time_function = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        if planned.analyzed().containsPattern(time_function):
            return {n: Use(set(schema.names), [None]) for n, schema in schemas.items()}
        return uses_of(planned.optimizedPlan(), tables, floats)

    def load(self, name: str, schema: StructType, use: Use, options: dict[str, str]) -> None:
        """Make the view of a table one of what is needed of it.

        Args:
            name: name of the table.
            schema: its columns.
            use: what is needed of it.
            options: masters and time of the read.
        """
        source = self._session.read().format("nyala").option("table", name)
        where = use.where(MAX_PUSHED_CHARACTERS)
        if where:
            options = {**options, "where": where}
        if not any("," in c or c != c.strip() for c in use.columns):
            options["columns"] = ",".join(f.name for f in schema if f.name in use.columns)
        for option, value in options.items():
            source = source.option(option, value)
        columns = [
            quoted(f.name)
            if f.name in use.columns
            else f"cast(null as {f.dataType.simpleString()}) as {quoted(f.name)}"
            for f in schema
        ]
        texts = self._context._gateway.new_array(self._jvm.java.lang.String, len(columns))
        for n, text in enumerate(columns):
            texts[n] = text
        source.load().selectExpr(texts).createOrReplaceTempView(quoted(name))

    def frame(self) -> DataFrame:
        """Return the frame of the query over the present views, as one of the user's session."""
        plan = self._rows().queryExecution().analyzed()
        return DataFrame(self._dataset(self._spark._jsparkSession, plan), self._spark)

    def _rows(self) -> Any:
        return self._dataset(self._session, self._parsed)

    def _dataset(self, session: Any, plan: Any) -> Any:
        return self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
