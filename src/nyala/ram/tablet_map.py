"""TabletMap: the tables, their tablets, and the server that owns each of them. It does no I/O."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nyala.common.errors import NotFound
from nyala.ram.ids import HashRange, ServerId
from nyala.wire.proto import ram_pb2 as pb

SHOWN = 10
"""Number of names in a message."""


def mapping(first: int, last: int, master: ServerId) -> pb.Mapping:
    """Return a new tablet; its creation time is the beginning of any log, so no server is asked (S3.50).

    Args:
        first: lowest hash of its keys.
        last: highest hash of its keys.
        master: the server that owns it.
    """
    return pb.Mapping(first=first, last=last, master=master.message())


@dataclass(slots=True)
class TabletMap:
    """Tables and tablets. Each method is one atomic change, and may be called again.

    Attributes:
        tables: by id.
        largest: highest id of the tables that were dropped, if no table with a higher one is left.
        changes: number of changes.
    """

    tables: dict[int, pb.Table] = field(default_factory=dict)
    largest: int = 0
    changes: int = 0

    # ---- changes -----------------------------------------------------------------------------------

    def add_table(self, table: pb.Table) -> None:
        """Add a table with its tablets, or replace what is known of it."""
        copy = pb.Table()
        copy.CopyFrom(table)
        self._put(copy)

    def _put(self, table: pb.Table) -> None:
        self.tables[table.id] = table
        self.changes += 1

    def remove_table(self, table_id: int) -> None:
        """Remove a table with its tablets."""
        if self.tables.pop(table_id, None) is not None:
            self.changes += 1
        if table_id > max(self.tables, default=0):
            self.largest = max(self.largest, table_id)

    def note_largest(self, table_id: int) -> None:
        """Note the id of a table that was dropped, which no table gets again (S3.31)."""
        self.largest = max(self.largest, table_id)

    def forget(self, table_id: int) -> None:
        """Remove a table that no record describes."""
        if self.tables.pop(table_id, None) is not None:
            self.changes += 1

    def forget_largest(self) -> None:
        """Forget the highest dropped id, since a table with a higher one exists."""
        self.largest = 0

    def split(self, table_id: int, split_hash: int) -> None:
        """Split the tablet that has this hash, so that one begins with it; nothing if one does (S3.32)."""
        table = self.tables.get(table_id)
        if table is None:
            return
        pieces: list[pb.Mapping] = []
        for tablet in table.tablets:
            if tablet.first < split_hash <= tablet.last:
                below, above = pb.Mapping(), pb.Mapping()
                below.CopyFrom(tablet)
                above.CopyFrom(tablet)
                below.last, above.first = split_hash - 1, split_hash
                pieces += [below, above]
            else:
                pieces.append(tablet)
        self._set_tablets(table, pieces)

    def recovered(self, table_id: int, lost: ServerId, pieces: Sequence[pb.Mapping]) -> None:
        """Replace the tablets of a lost server by pieces of them, at other servers (S3.33).

        Args:
            table_id: of the table.
            lost: server that owned them.
            pieces: which cover tablets of the lost server, and nothing else.
        """
        table = self.tables.get(table_id)
        if table is None:
            return
        kept = [t for t in table.tablets if ServerId.of(t.master) != lost]
        if len(kept) < len(table.tablets):
            self._set_tablets(table, [*kept, *pieces])

    def _set_tablets(self, table: pb.Table, tablets: Sequence[pb.Mapping]) -> None:
        made = pb.Table()
        made.CopyFrom(table)
        del made.tablets[:]
        made.tablets.extend(sorted(tablets, key=lambda t: t.first))
        self._put(made)

    # ---- questions ---------------------------------------------------------------------------------

    @property
    def next_id(self) -> int:
        """Id of the next table: no table had it."""
        return max(self.largest, max(self.tables, default=0)) + 1

    def by_name(self, name: str) -> pb.Table | None:
        """Return a table, or None."""
        return next((t for t in self.tables.values() if t.name == name), None)

    def named(self, name: str) -> pb.Table:
        """Return a table.

        Raises:
            NotFound: there is none of this name; the message has the nearest one.
        """
        found = self.by_name(name)
        if found is None:
            names = {t.name.casefold(): t.name for t in self.tables.values()}
            near = difflib.get_close_matches(name.casefold(), sorted(names), 1)
            hint = f" did you mean {names[near[0]]!r}?" if near else ""
            shown = ", ".join(sorted(names.values())[:SHOWN]) or "none yet"
            more = " and others" if len(names) > SHOWN else ""
            raise NotFound(
                f"the ensemble has no table {name!r};{hint} the tables are: {shown}{more}"
            )
        return found

    def lookup(self, table_id: int, key_hash: int) -> pb.Mapping | None:
        """Return the tablet of a key; None: there is no such table."""
        table = self.tables.get(table_id)
        if table is None:
            return None
        return next(t for t in table.tablets if t.first <= key_hash <= t.last)

    def owned_by(self, server: ServerId) -> list[HashRange]:
        """Return the tablets of a server, in order."""
        return self.owners().get(server, [])

    def owners(self) -> dict[ServerId, list[HashRange]]:
        """Return the tablets of each server, in order."""
        found: dict[ServerId, list[HashRange]] = {}
        for number, table in sorted(self.tables.items()):
            for t in table.tablets:
                owner = ServerId.of(t.master)
                found.setdefault(owner, []).append(HashRange(number, t.first, t.last))
        return found

    def describe(self) -> Iterator[pb.Record]:
        """Yield the records that describe the map, and no others (S3.26)."""
        for _, table in sorted(self.tables.items()):
            yield pb.Record(alive_table=table)
        if self.largest:
            yield pb.Record(largest_table_id=self.largest)
