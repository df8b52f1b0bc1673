"""Restore of a table as of a moment, into a new table that appears under its name when it is whole."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nyala.backup.chain import Chain, chain_at, check_files
from nyala.backup.definition import table_spec
from nyala.backup.folders import in_use
from nyala.backup.load import FileLoad, load_file
from nyala.backup.manifest import BackupFile, Interval
from nyala.backup.take import AT_ONCE, Report
from nyala.client.client import Client
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.table import Table
from nyala.common.errors import AlreadyPresent, Corrupt
from nyala.common.hybrid_time import as_stamp
from nyala.wire.proto import nyala_pb2 as pb

SUFFIX = ".restoring"
"""End of the name of a table while it is restored."""
MARK = "nyala restore: not complete"
"""Comment of a table while it is restored."""

Runner = Callable[[Table, list[FileLoad]], int]
"""Loads files, anywhere and in any order, and returns the number of rows and changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Options of a restore.

    Attributes:
        name: of the new table; empty: as in the backup.
        at: hybrid time; None: the end of the newest chain.
        replicas: of each tablet; 0: as in the backup.
        verify: compare the checksums of all files, and not their sizes only, before anything is written.
        dry_run: check only.
    """

    name: str = ""
    at: int | None = None
    replicas: int = 0
    verify: bool = True
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore.

    Attributes:
        name: of the table.
        at: hybrid time as of which it was restored.
        rows: number of its rows; with `dry_run`, -1.
        elements: number of elements that were used.
        files: number of their files.
        bytes: size of these files.
    """

    name: str
    at: int
    rows: int
    elements: int
    files: int
    bytes: int


class Restoring:
    """Restores of tables from one folder into one cluster.

    Args:
        connection: to the cluster.
        root: folder of the backups.
        run: loads files; None: threads of this process.
        report: called with lines about the progress.
    """

    def __init__(
        self, connection: Connection, root: Path, run: Runner | None = None, report: Report = str
    ) -> None:
        self._connection = connection
        self._client = Client(connection)
        self._root = root
        self._run = run or run_in_threads
        self._report = report

    def restore(self, table: str, options: RestoreOptions) -> Restored:
        """Restore a table; it appears under its name when it is whole.

        What an earlier restore to this name left, which did not end, is dropped first.

        Args:
            table: its name in the backup.
            options: what is restored.

        Raises:
            InvalidArgument: no backup of this table, or not of this moment.
            AlreadyPresent: a table has the name; nothing was written.
            Corrupt: files are missing or were altered; nothing was written. Or the restored table does not
                have the number of rows that the backup states.
            Unavailable: another process removes backups of the table.
        """
        chain = chain_at(self._root, table, options.at)
        with in_use(chain.folder):
            return self._restore(chain, table, options)

    def _restore(self, chain: Chain, table: str, options: RestoreOptions) -> Restored:
        """Restore a table from a chain that nobody removes meanwhile."""
        at = chain.until if options.at is None else as_stamp(options.at)
        name = options.name or table
        files, size = check_files([chain], contents=options.verify)
        self._report(f"{table}: {files} files, {size:,} bytes, are as the backup states")
        leftover = self._check_name(name)
        if options.dry_run:
            return Restored(name, at, -1, len(chain.elements), files, size)
        if leftover:
            self._client.drop_table(name + SUFFIX)
        made = self._create(chain, at, name, options.replicas)
        steps = [loads for loads in stages(chain, at) if loads]
        for number, loads in enumerate(steps, 1):
            changes = self._run(made, loads)
            self._report(f"{table}: step {number} of {len(steps)}, {changes:,} rows and changes")
        rows = made.count()
        expected = chain.elements[-1].rows_at_end
        if at == chain.until and rows != expected:
            raise Corrupt(
                f"the restored table {made.name!r} has {rows} rows, and the backup states {expected}; it is "
                "left under this name. Check the backup with: nyala backup verify"
            )
        made.alter().set_comment(chain.elements[-1].definition.comment).rename(name).commit()
        return Restored(name, at, rows, len(chain.elements), files, size)

    def _check_name(self, name: str) -> bool:
        """Refuse a name that is taken; return whether an earlier restore to it has not ended."""
        names = self._client.tables()
        if name in names:
            raise AlreadyPresent(
                f"table {name!r} exists, and a restore never writes over a table; give another name with "
                "--as (of nyala pipeline restore: --name), or drop or rename the table first"
            )
        if name + SUFFIX not in names:
            return False
        if self._client.describe(name + SUFFIX).comment != MARK:
            raise AlreadyPresent(
                f"table {name + SUFFIX!r} exists, whose name a restore to {name!r} needs; rename it first"
            )
        return True

    def _create(self, chain: Chain, at: int, name: str, replicas: int) -> Table:
        element = chain.elements[-1]
        spec: pb.TableSpec = table_spec(
            name + SUFFIX, interval_at(chain, at).schema, element.definition, at
        )
        spec.comment = MARK
        if replicas:
            spec.replicas = replicas
        return create(self._connection, spec)


def create(connection: Connection, spec: pb.TableSpec) -> Table:
    """Create a table by its whole definition, and return it when its tablets run.

    Args:
        connection: to the cluster.
        spec: the definition.

    Raises:
        AlreadyPresent, InvalidArgument, NotReady, OutcomeUnknown: as `Client.create_table`.
    """
    core = connection.core

    async def opened(table_id: str, timeout_ms: int) -> OpenTable:
        return await core.locations.open("", timeout_ms, table_id=table_id)

    return Table(connection, connection.change(core.ddl.create(spec, opened)))


def interval_at(chain: Chain, at: int) -> Interval:
    """Return the interval that contains a moment; its columns are those of the table then.

    Args:
        chain: that contains the moment.
        at: hybrid time.
    """
    return next(s for e in chain.elements for s in e.intervals if at <= s.through)


def stages(chain: Chain, at: int) -> Iterator[list[FileLoad]]:
    """Yield the files in the order in which they are loaded; those of one list have no key in common.

    Args:
        chain: that contains the moment.
        at: hybrid time.
    """
    target = interval_at(chain, at).schema
    partition = chain.elements[-1].definition.partition_at(at)

    def load(element: str, interval: Interval, file: BackupFile) -> FileLoad:
        path = str(chain.folder / element / file.name)
        return FileLoad(path, interval.schema, target, partition, at, bool(interval.since))

    for element in chain.elements:
        for interval in element.intervals:
            if interval.since >= at:
                return
            ended = [f for f in interval.files if f.dropped_at]
            if not interval.since:
                yield [load(element.id, interval, f) for f in interval.files]
                continue
            for time in sorted({f.dropped_at for f in ended}):
                yield [load(element.id, interval, f) for f in ended if f.dropped_at == time]
            yield [load(element.id, interval, f) for f in interval.files if not f.dropped_at]


def run_in_threads(table: Table, loads: list[FileLoad]) -> int:
    """Load files in this process, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE, "nyala-restore") as pool:
        return sum(pool.map(lambda load: load_file(load, table), loads))
