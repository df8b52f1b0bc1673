"""Checks of the arguments of calls, before a request is sent, and names of other systems' calls."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nyala.common.errors import InvalidArgument
from nyala.common.schema import utf8_bytes

MAX_TIMEOUT_MS = (1 << 31) - 1
"""Longest timeout of a call, in milliseconds: 24 days."""


def is_int(value: object) -> bool:
    """Return whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_int(name: str, value: Any, lowest: int = 0) -> None:
    """Check a whole number of an option.

    Args:
        name: of the option.
        value: of the option.
        lowest: smallest value allowed.

    Raises:
        InvalidArgument: it is no int, below `lowest`, or not of 63 bits.
    """
    if not is_int(value) or not lowest <= value < 1 << 63:
        raise InvalidArgument(f"{name}={value!r} is not a whole number from {lowest} on; give one")


def check_timeout(value: Any) -> None:
    """Check a timeout in milliseconds.

    Raises:
        InvalidArgument: it is no number from 1 to `MAX_TIMEOUT_MS`.
    """
    fits = is_int(value) or (isinstance(value, float) and math.isfinite(value))
    if not fits or not 1 <= value <= MAX_TIMEOUT_MS:
        raise InvalidArgument(
            f"timeout_ms={value!r} is not a number of milliseconds from 1 to {MAX_TIMEOUT_MS}; give one"
        )


def check_text(name: str, value: Any) -> None:
    """Check a text that is sent.

    Raises:
        InvalidArgument: it is no str, or has a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidArgument(
            f"{name}={value!r} is a {type(value).__name__}, not a text; give a str"
        )
    utf8_bytes(value)


def check_list(name: str, value: Any) -> list[Any]:
    """Return a list of names, or of addresses; an iterator is read once.

    Raises:
        InvalidArgument: it is not iterable.
    """
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise InvalidArgument(
            f"{name}={value!r} is a {type(value).__name__}, not a list; pass a list"
        )
    return list(value)


def check_replicas(replicas: Any, what: str = "table") -> None:
    """Check a number of replicas before it is sent; the master checks it against the cluster.

    Args:
        replicas: of each tablet.
        what: has them.

    Raises:
        InvalidArgument: it is not a positive int of 32 bits.
    """
    if not is_int(replicas) or not 0 < replicas < 1 << 31:
        raise InvalidArgument(
            f"replicas={replicas!r}; a {what} has an odd number of them, from 1 on; give a whole number"
        )


def check_age(name: str, age_ms: Any) -> None:
    """Check an age in milliseconds.

    Raises:
        InvalidArgument: it is not a whole number from 0 on.
    """
    if not is_int(age_ms) or not 0 <= age_ms < 1 << 63:
        raise InvalidArgument(
            f"{name}={age_ms!r} is no age; give a number of milliseconds, from 0 on"
        )


def check_reserve(reserve_seconds: Any) -> None:
    """Check the time for which something dropped can be recalled.

    Raises:
        InvalidArgument: it is not a whole number of seconds from 0 on.
    """
    if not is_int(reserve_seconds) or not 0 <= reserve_seconds < 1 << 63:
        raise InvalidArgument(
            f"reserve_seconds={reserve_seconds!r} is no time; give 0 or a number of seconds"
        )


OTHER_NAMES = {
    "Client": {
        "list_tables": "tables()",
        "table_exists": "name in client.tables()",
        "new_session": "no session: table.upsert(rows) returns when all rows are durable",
        "alter_table": "client.table(name).alter()",
        "delete_table": "drop_table(name)",
        "open_table": "table(name)",
        "drop": "drop_table(name)",
        "read_sql": "sql(query).to_pandas()",
        "read_table": "table(name).scan().to_pandas()",
        "execute": "sql(query)",
        "query": "sql(query)",
    },
    "AsyncClient": {
        "transaction_part": "in a thread, a client of nyala.connect(): client.transaction_part(token, name)",
        "resume_transaction": "in a thread, a client of nyala.connect(): client.resume_transaction(token)",
    },
    "Table": {
        "new_insert": "insert([{column: value, ...}, ...])",
        "new_upsert": "upsert([{column: value, ...}, ...])",
        "new_update": "update([{column: value, ...}, ...])",
        "new_delete": "delete([{key column: value, ...}, ...])",
        "scanner": "scan(columns, where='...')",
        "merge": "upsert(rows), or insert_ignore, update_ignore and delete_ignore",
        "history": "changes(since, until); describe the table with client.describe(name)",
        "version": "scan(at=time); client.now() is the present",
        "restore": "scan(at=time), whose rows can be written back",
        "vacuum": "nothing: servers remove old versions by themselves (option history_max_age_s)",
        "optimize": "nothing: servers merge files by themselves",
        "append": "insert(rows)",
        "insert_many": "insert(rows)",
        "drop": "client.drop_table(name), table.alter().drop_column(name), or table.delete_where('...')",
        "select": "scan(columns)",
        "filter": "scan(where='...')",
        "to_pandas": "scan().to_pandas()",
        "to_polars": "scan().to_polars()",
        "to_arrow": "scan().to_arrow()",
        "to_pyarrow_table": "scan().to_arrow()",
        "to_batches": "scan().to_batches()",
        "to_csv": "scan().to_pandas().to_csv(path)",
        "to_parquet": "pyarrow.parquet.write_table(scan().to_arrow(), path)",
        "head": "scan(limit=5).to_pandas()",
        "columns": "schema.names",
        "dtypes": "schema",
        "shape": "count() and schema.names",
        "query": "scan(where='...').to_pandas()",
        "loc": "get({key column: value}), or scan(where='...')",
        "iloc": "scan(order=True, limit=n)",
        "sort_values": "scan().to_pandas().sort_values(name), or scan(order=True) by primary key",
        "describe": "client.describe(name), or scan().to_pandas().describe()",
        "groupby": "client.sql('select ... group by ...')",
    },
    "Scan": {
        "add_predicate": "table.scan(where='...')",
        "open": "to_batches()",
        "read_all_tuples": "to_arrow().to_pylist()",
        "read_next_batch": "to_batches()",
        "filter": "table.scan(where='...')",
        "select": "table.scan(columns)",
        "limit": "table.scan(limit=n)",
        "fetchall": "to_arrow().to_pylist()",
        "df": "to_pandas()",
        "collect": "to_arrow()",
        "show": "to_pandas()",
        "head": "table.scan(limit=5).to_pandas()",
    },
    "Alter": {
        "add_range_partition": "add_range(lower, upper)",
        "drop_range_partition": "drop_range(lower, upper)",
        "rename_table": "rename(new_name)",
        "alter": "commit()",
    },
}
"""Names of other systems by class, each with what replaces it."""


class OtherNames:
    """Adds what to use instead to the error of a name that Kudu, Delta or pandas has."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse a name; called for those only that the object does not have."""
            kind = type(self).__name__
            names = OTHER_NAMES.get(kind.removeprefix("Async"), {}) | OTHER_NAMES.get(kind, {})
            instead = names.get(name)
            more = f"; use {instead}" if instead else ""
            raise AttributeError(
                f"{kind!r} object has no attribute {name!r}{more}", name=name, obj=self
            )
