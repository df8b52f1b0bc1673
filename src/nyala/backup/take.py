"""Taking a backup: the plan of one element of each table, its parts, and its manifest, written last."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nyala.backup.chain import newest_chain, note_latest
from nyala.backup.describe import definition_of
from nyala.backup.folders import (
    MANIFEST,
    element_folders,
    locked,
    remove_others,
    remove_unfinished,
    table_folder,
)
from nyala.backup.manifest import (
    FULL,
    INCREMENTAL,
    BackupFile,
    Element,
    Interval,
    element_id,
    write,
)
from nyala.backup.parts import BackupPart, write_part
from nyala.client.client import Client
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.scan import Scan
from nyala.client.table import Table
from nyala.common.errors import HistoryGone, InvalidArgument
from nyala.common.schema import Schema
from nyala.security.files import sync_folder

SPLIT_BYTES = 1 << 30
"""Approximate number of stored bytes of one file of a full backup."""
AT_ONCE = 4
"""Number of files that one process writes at a time."""
HOLD_S = 86_400

Runner = Callable[[list[BackupPart]], list[BackupFile | None]]
"""Writes parts, anywhere, and returns the facts of their files in the same order."""
Report = Callable[[str], object]
"""Called with a line about the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOptions:
    """Options of a backup.

    Attributes:
        full: begin a new chain, although the last one could be continued.
        keep_history_s: seconds, at most 7 days, for which the history after this backup stays readable, so
            that the next one can be incremental; 0: as long as the tables' `history_max_age_s`.
        dry_run: plan only.
    """

    full: bool = False
    keep_history_s: int = 0
    dry_run: bool = False


class Taking:
    """Backups of tables of one cluster into one folder.

    Args:
        connection: to the cluster.
        root: folder of the backups; it is created.
        run: writes the parts; None: threads of this process.
        report: called with lines about the progress.
    """

    def __init__(
        self, connection: Connection, root: Path, run: Runner | None = None, report: Report = str
    ) -> None:
        self._connection = connection
        self._client = Client(connection)
        self._root = root
        self._run = run or partial(run_in_threads, connection)
        self._report = report

    def take(self, names: Sequence[str], options: TakeOptions) -> list[Element]:
        """Back up tables, all as of one moment; return the new elements (with `dry_run`, without files).

        Args:
            names: of the tables.
            options: how.

        Raises:
            NotFound: no such table; nothing was written.
            HistoryGone: the changes since the last backup are gone: a full one is needed.
            InvalidArgument: the table was dropped and created again since the last backup.
            Unavailable: another process works on the backups of a table.
        """
        if self._root.exists() and not self._root.is_dir():
            raise InvalidArgument(
                f"{self._root} is a file, and backups need a folder: name another one"
            )
        if len(set(names)) != len(names):
            raise InvalidArgument("a table is named twice; name each table once")
        tables = [self._client.table(name) for name in names]
        with ExitStack() as stack:
            if not options.dry_run:
                for name in names:
                    stack.enter_context(locked(table_folder(self._root, name)))
            befores = [self._before(t, options.full) for t in tables]
            until = self._client.now()
            for table, before in zip(tables, befores, strict=True):
                stack.enter_context(self._held(table, before, until))
            made = [
                self._element(table, before, until, options)
                for table, before in zip(tables, befores, strict=True)
            ]
            if not options.dry_run:  # of all tables or of none, as far as one process can tell
                made = [self._complete(element) for element in made]
            if options.keep_history_s and not options.dry_run:
                for table in tables:  # it is not released: it expires
                    table.hold(until, options.keep_history_s)
        return made

    def _before(self, table: Table, full: bool) -> Element | None:
        """Return the element that the next one continues; None: it will be a full one."""
        folder = table_folder(self._root, table.name)
        if full or not any((p / MANIFEST).exists() for p in element_folders(folder)):
            return None
        last = newest_chain(self._root, table.name).elements[-1]
        if last.table_id != table.id:
            raise InvalidArgument(
                f"table {table.name!r} has the id {table.id}, and the backups in {folder} are of another "
                f"table of this name, with the id {last.table_id}: it was dropped and created again, or is "
                "of another cluster. Take a full backup, with --full, or name another folder"
            )
        return last

    def _held(self, table: Table, before: Element | None, until: int) -> ExitStack:
        """Hold the history that is read, until the returned context ends."""
        stack = ExitStack()
        try:
            stack.enter_context(table.hold(until if before is None else before.until, HOLD_S))
        except HistoryGone as err:
            raise _gone(table.name, err) from err
        return stack

    def _element(
        self, table: Table, before: Element | None, until: int, options: TakeOptions
    ) -> Element:
        """Return one element, whose files are written, and which has no manifest yet."""
        connection = self._connection
        opened = connection.run(connection.core.open_table(table.name))
        kind = FULL if before is None else INCREMENTAL
        folder = table_folder(self._root, table.name) / element_id(kind, until)
        if not options.dry_run:
            remove_unfinished(folder.parent)
            folder.mkdir()
        intervals: list[tuple[Interval, int]] = []
        parts: list[BackupPart] = []
        try:
            for since, through, schema in self._epochs(opened, before, until):
                some = list(self._parts(table, opened, since, through, folder, len(parts)))
                intervals.append((Interval(since, through, schema, ()), len(some)))
                parts += some
        except HistoryGone as err:
            raise _gone(table.name, err) from err
        self._report(f"{table.name}: {kind} backup, {len(parts)} files")
        files = [] if options.dry_run else self._run(parts)
        rows = 0 if options.dry_run else table.scan(at=until).count()
        return Element(
            id=folder.name, kind=kind, table=table.name, table_id=table.id,
            since=0 if before is None else before.until, until=until,
            previous="" if before is None else before.id,
            previous_checksum="" if before is None else before.checksum,
            rows_at_end=rows, definition=definition_of(connection, opened),
            intervals=tuple(_with_files(intervals, files)),
        )  # fmt: skip

    def _complete(self, element: Element) -> Element:
        """Write the manifest of an element, durably; return it with its checksum."""
        folder = table_folder(self._root, element.table) / element.id
        remove_others(folder, [f.name for interval in element.intervals for f in interval.files])
        sync_folder(folder)
        written = write(folder, element)
        note_latest(folder.parent, written)
        what = f"{element.kind} backup, {element.bytes:,} bytes, as of {element.until}"
        self._report(f"{element.table}: {what}")
        return written

    def _epochs(
        self, opened: OpenTable, before: Element | None, until: int
    ) -> Iterator[tuple[int, int, Schema]]:
        """Yield the intervals of time in which the columns did not change, and the columns of each."""
        connection, past = self._connection, self._connection.core.past
        if before is None:
            yield 0, until, connection.run(past.at(opened, until)).schema
            return
        since = before.until
        while since < until:
            then = connection.run(past.at(opened, since + 1))
            through = min(until, then.until - 1) if then.until else until
            yield since, through, then.schema
            since = through

    def _parts(
        self, table: Table, opened: OpenTable, since: int, through: int, folder: Path, first: int
    ) -> Iterator[BackupPart]:
        """Yield the parts of one interval; those of dropped ranges come first, in order of their drop.

        Args:
            table: the table.
            opened: the same; its ranges are looked up again.
            since: exclusive lower end of the changes; 0: a snapshot.
            through: inclusive upper end.
            folder: of the element.
            first: number of the first part.
        """
        if since:
            scan: Scan = table.changes(since, through, net=False)
            tokens = scan.tokens()
        else:
            scan = table.scan(at=through)
            tokens = scan.tokens(SPLIT_BYTES)
        locations = self._connection.core.locations
        self._connection.run(locations.refresh(opened, by_leader=True))
        ended: dict[str, int] = {t.id: t.dropped_at for t in opened.dropped}
        schema = scan.schema.serialize().to_pybytes()
        for number, token in enumerate(tokens, first):
            path = folder / f"{number:05d}.parquet"
            yield BackupPart(bytes(token), str(path), schema, ended.get(token.tablet_id, 0))


def run_in_threads(connection: Connection, parts: list[BackupPart]) -> list[BackupFile | None]:
    """Write parts in this process, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE, "nyala-backup") as pool:
        return list(pool.map(partial(write_part, connection=connection), parts))


def _with_files(
    intervals: Sequence[tuple[Interval, int]], files: Sequence[BackupFile | None]
) -> Iterator[Interval]:
    """Yield the intervals with their files.

    Args:
        intervals: without files, and the number of parts of each.
        files: of all parts; None: of one without rows.
    """
    first = 0
    for interval, count in intervals:
        own = files[first : first + count]
        yield replace(interval, files=tuple(f for f in own if f is not None))
        first += count


def _gone(name: str, err: HistoryGone) -> HistoryGone:
    return HistoryGone(
        f"the changes of table {name!r} since its last backup are not kept any more ({err.message}). Take a "
        "full backup, with --full; to avoid this, back up more often than history_max_age_s, or use "
        "--keep-history-s",
        err.details,
    )
