"""Random histories of a table with backups between them, and exact comparisons of tables."""

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import nyala
from nyala.backup.manifest import Element
from nyala.backup.restore import Restored, RestoreOptions, Restoring
from nyala.backup.take import TakeOptions, Taking
from nyala.client.connection import Connection

SCHEMA = pa.schema([
    pa.field("k", pa.int64(), nullable=False), ("s", pa.string()), pa.field("n", pa.float64()),
    pa.field("full", pa.int32(), nullable=False), ("b", pa.binary()), ("d", pa.decimal128(20, 3)),
    ("at", pa.timestamp("us", "UTC")),
])  # fmt: skip
KEYS = 400
ODD_FLOATS = (0.0, -0.0, float("nan"), float("inf"), 1e-310)


class Backups:
    """Takes and restores backups in one folder.

    Args:
        connection: to the cluster.
        client: of the same connection.
        root: the folder.
    """

    def __init__(self, connection: Connection, client: nyala.Client, root: Path) -> None:
        self.connection = connection
        self.client = client
        self.root = root

    def take(self, *names: str, **options: Any) -> list[Element]:
        """Back up tables."""
        return Taking(self.connection, self.root).take(names, TakeOptions(**options))

    def restore(self, table: str, **options: Any) -> Restored:
        """Restore a table."""
        return Restoring(self.connection, self.root).restore(table, RestoreOptions(**options))


def filled(backups: Backups, name: str = "t", rows: int = 100, **options: Any) -> nyala.Table:
    """Create a table with rows."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
    table = backups.client.create_table(name, schema, ["k"], replicas=1, **options)
    table.upsert([{"k": n, "v": f"v{n}"} for n in range(rows)])
    return table


def bits(table: pa.Table) -> pa.Table:
    """Return a table whose floats are replaced by their bits, so that NaN and -0.0 are compared."""
    columns = [
        c.combine_chunks().view(pa.int64()) if c.type == pa.float64() else c.combine_chunks()
        for c in table.columns
    ]
    return pa.table(columns, names=table.schema.names)


class History:
    """A table that changes at random; a seed determines it.

    Args:
        client: creates it.
        name: of the table.
        seed: of the changes.

    Attributes:
        moments: hybrid times between changes.
    """

    def __init__(self, client: nyala.Client, name: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._client = client
        self.name = name
        self._ranges = [(0, 200), (200, KEYS)]
        parts = nyala.Partition(
            hash=[nyala.Hash(["k"], 2)], range=nyala.Range(["k"], list(self._ranges))
        )
        client.create_table(name, SCHEMA, ["k"], parts, 1, defaults={"s": "none"})
        self._added = 0
        self.moments: list[int] = []

    def change(self) -> None:
        """Change rows, columns or ranges once, and note the time."""
        choices = [self._upsert] * 5 + [self._delete] * 3 + [self._transaction] * 2
        alterations = [self._add, self._drop, self._rename, self._replace_range]
        self._random.choice([*choices, *alterations])()
        self.moments.append(self._client.now())

    def _table(self) -> nyala.Table:
        return self._client.table(self.name)

    def _rows(self, count: int) -> list[dict[str, Any]]:
        draw, table = self._random, self._table()
        lower, upper = draw.choice(self._ranges)
        keys = draw.sample(range(lower, upper), count)
        return [
            {"k": key, **{f.name: self._value(f.type) for f in list(table.schema)[1:]}}
            for key in sorted(keys)
        ]

    def _value(self, kind: pa.DataType) -> Any:
        draw = self._random
        number = draw.randrange(1000)
        if pa.types.is_float64(kind):
            return draw.choice([None, number / 7, *ODD_FLOATS])
        if pa.types.is_decimal(kind):
            return Decimal(number) / 8
        if pa.types.is_timestamp(kind):
            return pa.scalar(number * 10**12, kind)
        if pa.types.is_int32(kind):
            return number
        text = draw.choice(["", f"é{number}"])
        return text if pa.types.is_string(kind) else text.encode()

    def _upsert(self) -> None:
        self._table().upsert(self._rows(40)).raise_for_errors()

    def _delete(self) -> None:
        rows = [{"k": r["k"]} for r in self._rows(30)]
        self._table().delete_ignore(rows).raise_for_errors()

    def _transaction(self) -> None:
        table, rows = self._table(), self._rows(30)
        with self._client.transaction() as txn:
            table.upsert(rows[:20], txn=txn)
            table.delete([{"k": r["k"]} for r in rows[20:]], txn=txn)

    def _add(self) -> None:
        self._added += 1
        kinds = [(pa.string(), "new"), (pa.int32(), 5), (pa.binary(), None)]
        kind, default = self._random.choice(kinds)
        alter = self._table().alter()
        alter.add_column(
            f"c{self._added}", kind, nullable=default is None, default=default
        ).commit()

    def _others(self) -> list[str]:
        return [n for n in self._table().schema.names if n not in ("k", "full")]

    def _drop(self) -> None:
        if names := self._others():
            self._table().alter().drop_column(self._random.choice(names)).commit()

    def _rename(self) -> None:
        self._added += 1
        if names := self._others():
            name = self._random.choice(names)
            self._table().alter().rename_column(name, f"r{self._added}").commit()

    def _replace_range(self) -> None:
        number = self._random.randrange(len(self._ranges))
        lower, upper = self._ranges[number]
        self._table().alter().drop_range(lower, upper).commit()
        self.moments.append(self._client.now())
        bound = (lower + upper) // 2
        wider = (lower, upper) if self._random.random() < 0.5 else (lower, bound)
        if wider[1] - wider[0] >= 50:
            self._ranges[number] = wider
        self._table().alter().add_range(*self._ranges[number]).commit()
