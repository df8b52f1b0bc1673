"""A table as DuckDB reads it: an Arrow dataset that fetches rows when a scan of the query begins.

DuckDB gives the columns and the filter of a scan. These columns are fetched, of at least the rows that pass
the filter; Arrow's scanner then applies the filter as for any Arrow table.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from nyala.client.sql.filters import as_predicate, columns_in
from nyala.common.predicate import Predicate
from nyala.common.schema import Schema

Fetch = Callable[[tuple[str, ...], Predicate | None], pa.Table]
"""Returns some columns of at least the rows that pass, all of one snapshot."""


class TableDataset(ds.Dataset):  # type: ignore[misc]
    """One table of a query. Used by several threads at once: equal scans share one fetch.

    Args:
        schema: its columns.
        fetch: reads it.
    """

    def __init__(self, schema: Schema, fetch: Fetch) -> None:
        self._schema = schema
        self._fetch = fetch
        self._fetched: dict[tuple[tuple[str, ...], str], Future[pa.Table]] = {}
        self.failure: BaseException | None = None

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of a row."""
        return self._schema.arrow

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **how: Any,
    ) -> ds.Scanner:
        """Return the scanner of one scan; DuckDB calls this in its own threads."""
        try:
            rows = self._rows(columns, filter)
        except BaseException as err:  # DuckDB passes on its text only
            self.failure = err
            raise
        return ds.dataset(rows).scanner(columns=columns, filter=filter, **how)

    def _rows(self, columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.Table:
        every = self._schema.arrow.names
        wanted = set(every if columns is None else columns)
        where = None if filter is None else as_predicate(filter, self._schema)
        if filter is not None:
            wanted |= columns_in(filter, every)
        names = tuple(n for n in every if n in wanted) or (every[0],)
        # A query may scan a table many times: a recursive one once per step.
        key = (names, "" if where is None else str(filter))
        own: Future[pa.Table] = Future()
        found = self._fetched.setdefault(key, own)
        if found is own:
            try:
                own.set_result(self._fetch(names, where))
            except BaseException as err:
                del self._fetched[key]  # the next scan fetches again
                own.set_exception(err)
        return found.result()
