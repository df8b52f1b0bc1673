"""Tables in memory for queries: they filter as tablets do, and record the requests."""

from dataclasses import dataclass, field

import duckdb
import pyarrow as pa

from nyala.common.errors import NotFound
from nyala.common.expressions.predicate import Predicate, evaluate
from nyala.common.schema import Schema, from_arrow


def table_of(rows: pa.Table, key: str) -> tuple[Schema, pa.RecordBatch]:
    """Return the definition and the rows of a table with these rows."""
    definition = from_arrow(rows.schema, [key])
    (batch,) = rows.select(definition.arrow.names).combine_chunks().to_batches()
    return definition, pa.RecordBatch.from_arrays(batch.columns, schema=definition.arrow)


@dataclass
class Asked:
    """One read of a table."""

    table: str
    columns: tuple[str, ...]
    where: Predicate | None
    at: int


@dataclass
class TablesInMemory:
    """See `nyala.client.sql.query.Tables`."""

    tables: dict[str, tuple[Schema, pa.RecordBatch]]
    asked: list[Asked] = field(default_factory=list)
    opened: list[tuple[str, int]] = field(default_factory=list)
    clock: int = 76
    broken: Exception | None = None

    def names(self) -> list[str]:
        return list(self.tables)

    def open(self, name: str, at: int) -> Schema:
        self.opened.append((name, at))
        if name not in self.tables:
            raise NotFound(f"no table {name!r}")
        return self.tables[name][0]

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def read(
        self, name: str, columns: tuple[str, ...], where: Predicate | None, at: int
    ) -> pa.Table:
        if self.broken is not None:
            raise self.broken
        self.asked.append(Asked(name, columns, where, at))
        definition, found = self.tables[name]
        if where is not None:
            by_id = definition.by_id
            found = found.filter(
                evaluate(where, lambda i: found.column(by_id[i].name), found.num_rows)
            )
        return pa.Table.from_batches([found.select(list(columns))])


def plainly(tables: TablesInMemory, query: str) -> pa.Table:
    """Return the results of DuckDB itself over the same Arrow tables."""
    engine = duckdb.connect(":memory:")
    try:
        engine.execute("set python_enable_replacements=false").fetchall()
        for name, (_, batch) in tables.tables.items():
            engine.register(name, pa.Table.from_batches([batch]))
        return engine.sql(query).to_arrow_table()
    finally:
        engine.close()
