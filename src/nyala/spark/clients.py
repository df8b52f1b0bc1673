"""The client of a process of Spark, kept between tasks and between the planning of jobs."""

from dataclasses import dataclass

from nyala.client.client import Client
from nyala.client.connection import Connection, shared
from nyala.client.table import Table
from nyala.common.errors import NotFound

TIMEOUT_MS = 120_000
"""Deadline of the calls of a task that writes, and of a commit."""


def process_client(masters: str) -> Client:
    """Return this process' client of a cluster, which is never closed. Any thread.

    Spark uses a Python worker for many tasks, and one for the planning of many jobs: connecting again each
    time would take longer than most plans.

    Args:
        masters: addresses of the masters.

    Raises:
        Unavailable: no master answers.
    """
    return Client(shared(masters))


def writing_client(masters: str) -> Client:
    """Return this process' client of a cluster for writes, which has a deadline of `TIMEOUT_MS`.

    It is kept as that of `process_client`. Raises as that.

    Args:
        masters: addresses of the masters.
    """
    return Client(shared(masters, TIMEOUT_MS))


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table as the driver found it when it planned a job or a batch.

    Attributes:
        id: of the table.
        schema_version: of its columns.
        ranges_version: of its ranges.
    """

    id: str
    schema_version: int
    ranges_version: int

    @staticmethod
    def of(table: Table) -> "PlannedTable":
        """Return what a handle knows of its table."""
        known = table.known
        return PlannedTable(str(known.id), known.schema.version, known.ranges_version)


_opened: dict[tuple[Connection, str], Table] = {}
"""Tables that were opened by the connections of this process."""


def written_table(masters: str, name: str, planned: PlannedTable | None = None) -> Table:
    """Return a table of `writing_client`, opened before by this process if it is as the driver planned it.

    Args:
        masters: addresses of the masters.
        name: of the table.
        planned: the table as the driver found it; None: ask the masters.

    Raises:
        NotFound: no such table, or one that is not the planned one.
        Unavailable, TimedOut: no leader master answers.
    """
    key = (shared(masters, TIMEOUT_MS), name)
    found = _opened.get(key)
    if found is None or planned is None or PlannedTable.of(found) != planned:
        found = _opened[key] = Client(key[0]).table(name)
    if planned is not None:
        check_same(found, planned.id)
    return found


def check_same(table: Table, planned_id: str) -> None:
    """Check that a table is that for which a job was planned, and not another one that has got its name.

    Raises:
        NotFound: it is another one.
    """
    if table.id != planned_id:
        raise NotFound(
            f"table {table.name!r} with the id {planned_id}, for which this job was planned, was dropped or "
            f"renamed, and another one, with the id {table.id}, has its name, of which the job reads and "
            "writes nothing: load its frame anew and run it again, to use the table that has the name now"
        )
