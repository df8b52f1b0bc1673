"""Errors that end a stream, with what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager

from nyala.common.errors import Forbidden, HistoryGone, NyalaError, SchemaMismatch


def history_gone(table: str, hold_s: int, err: NyalaError) -> HistoryGone:
    """Return the error of a stream whose next changes cannot be read any more.

    Args:
        table: name of the table.
        hold_s: seconds for which the stream holds history after it has ended.
        err: of the server.
    """
    return HistoryGone(
        f"the next changes of table {table!r} cannot be read any more: {err.message}. The query was stopped "
        f"for longer than its hold_s ({hold_s}) and the table's history_max_age_s, or began before them. "
        "Begin anew: another checkpointLocation, and starting=snapshot into an emptied sink. A larger "
        "hold_s lets a query be stopped for longer",
        dict(err.details),
    )


def altered(table: str, what: str) -> SchemaMismatch:
    """Return the error of a stream whose table has other columns than the stream.

    Args:
        table: name of the table.
        what: the difference.
    """
    return SchemaMismatch(
        f"table {table!r} was altered: {what}. A query keeps the columns that load() gave it, so it ends "
        "here. Start it again, load() included, with the same checkpointLocation: it continues after its "
        'last batch, with the new columns; option "columns" names those that it needs'
    )


CONTINUE = (
    "The query ends, and its present batch has no effect; when the grant is given, start it again with the "
    "same checkpointLocation: it continues with this batch"
)
RUN_AGAIN = "Run this again when the grant is given"


@contextmanager
def naming_table(table: str, advice: str = CONTINUE) -> Iterator[None]:
    """Name the table in an error of the block that a grant is missing, and say how to continue.

    The servers do not name a table to a user who has no grant on it.

    Args:
        table: name of the table, as the query has it.
        advice: what to do next, of a stream or a job.

    Raises:
        Forbidden: with the text of the server, which names the user and the role.
    """
    try:
        yield
    except Forbidden as err:
        raise Forbidden(f"table {table!r}: {err.message}. {advice}", dict(err.details)) from err
