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
from nyala.common.expressions.predicate import Predicate, all_of
from nyala.common.schema import Schema

Fetch = Callable[[tuple[str, ...], Predicate | None], pa.Table]
"""Returns some columns of at least the rows that pass, all of one snapshot."""


class TableDataset(ds.Dataset):  # type: ignore[misc]
    """One table of a query. Used by several threads at once: equal scans share one fetch.

    Args:
        schema: its columns.
        fetch: reads it.
        where: true for every row that the query uses; None: any may be used.
    """

    def __init__(self, schema: Schema, fetch: Fetch, where: Predicate | None = None) -> None:
        self._schema = schema
        self._fetch = fetch
        self._where = where
        self._fetched: dict[tuple[tuple[str, ...], bytes], Future[pa.Table]] = {}
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
        # A query may scan a table many times: a recursive one once per step. The text of a filter leaves out
        # the middle of a long list, so its pickled form is what tells two filters apart.
        key = (names, b"" if where is None else _bytes_of(filter))
        own: Future[pa.Table] = Future()
        found = self._fetched.setdefault(key, own)
        if found is own:
            try:
                both = [part for part in (where, self._where) if part is not None]
                own.set_result(self._fetch(names, all_of(both) if both else None))
            except BaseException as err:
                del self._fetched[key]  # the next scan fetches again
                own.set_exception(err)
        return found.result()


def _bytes_of(filter: pc.Expression) -> bytes:
    """Return the pickled form of a filter, which has all of its values."""
    _, (pickled,) = filter.__reduce__()
    return bytes(pickled)
