"""Threads that write and read a table while servers crash, each with a record of the rows that must exist.

A worker counts an operation only when it is acknowledged, and stops the run on the first answer that is
impossible for a single server without failures: a row error on a row of its own means that one of its writes
took effect twice or not at all. Table: (owner, n) -> v, by.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

import pyarrow as pa

from nyala.client import Client, Table
from nyala.common.partitioning.partition_spec import Hash, Partition

SCHEMA = pa.schema(
    [("owner", pa.string()), ("n", pa.int64()), ("v", pa.int64()), ("by", pa.string())]
)
KEY = ["owner", "n"]
BATCH = 8
"""Rows of one insert: with four tablets, most go to several of them."""
PAUSE_S = 0.01
"""Seconds between two operations of a worker, so that two cores suffice for six servers."""


def create(client: Client, name: str, buckets: int = 4) -> Table:
    """Create the table that the workers use."""
    partition = Partition(hash=[Hash(["owner", "n"], buckets)]) if buckets > 1 else None
    return client.create_table(name, SCHEMA, KEY, partition)


def rows(owner: str, numbers: list[int], values: list[int], by: str = "") -> pa.Table:
    """Return rows of one owner."""
    size = len(numbers)
    return pa.table([[owner] * size, numbers, values, [by] * size], schema=SCHEMA)


class Worker(threading.Thread):
    """One client in one thread. Subclasses define a step and the rows that it leaves in the table.

    Attributes:
        name: owner of its rows.
        acknowledged: operations that were acknowledged.
        error: error that stopped it, or None.
    """

    def __init__(self, name: str, connect: Callable[[], Client], table: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connect, self._table = connect, table
        self.random = random.Random(f"{seed} {name}")
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with self._connect() as client:
                table = client.table(self._table)
                while not self._ended.wait(PAUSE_S):
                    self.step(client, table)
                    self.acknowledged += 1
        except BaseException as err:  # in a thread: `check` raises it in the test
            self.error = err

    def stop(self) -> None:
        """Request its end after the current operation."""
        self._ended.set()

    def step(self, client: Client, table: Table) -> None:
        raise AssertionError("a worker has steps")

    def expected(self) -> dict[tuple[str, int], int]:
        """Return the rows that it must find, (owner, n) -> v, once it has stopped."""
        return {}


class Inserts(Worker):
    """Inserts new rows: a row error is a duplicate of its own write."""

    sent = 0

    def step(self, client: Client, table: Table) -> None:
        numbers = list(range(self.sent, self.sent + BATCH))
        table.insert(rows(self.name, numbers, [n * 7 for n in numbers])).raise_for_errors()
        self.sent += BATCH

    def expected(self) -> dict[tuple[str, int], int]:
        return {(self.name, n): n * 7 for n in range(self.sent)}


class Versions(Worker):
    """Upserts increasing versions of a few rows; readers compare with `done` and `begun`."""

    KEYS = 24

    def __init__(self, name: str, connect: Callable[[], Client], table: str, seed: int) -> None:
        super().__init__(name, connect, table, seed)
        self.begun = [0] * self.KEYS
        self.done = [0] * self.KEYS

    def step(self, client: Client, table: Table) -> None:
        key = self.random.randrange(self.KEYS)
        self.begun[key] += 1
        table.upsert(rows(self.name, [key], [self.begun[key]])).raise_for_errors()
        self.done[key] = self.begun[key]

    def expected(self) -> dict[tuple[str, int], int]:
        return {(self.name, n): v for n, v in enumerate(self.done) if v}


class Lives(Worker):
    """Inserts, updates and deletes rows: each op has a row error exactly if one before it did not
    take effect once."""

    KEYS = 16

    def __init__(self, name: str, connect: Callable[[], Client], table: str, seed: int) -> None:
        super().__init__(name, connect, table, seed)
        self.alive: dict[int, int] = {}

    def step(self, client: Client, table: Table) -> None:
        key, value = self.random.randrange(self.KEYS), self.acknowledged
        row = rows(self.name, [key], [value])
        if key not in self.alive:
            table.insert(row).raise_for_errors()
            self.alive[key] = value
        elif self.random.random() < 0.6:
            table.update(row).raise_for_errors()
            self.alive[key] = value
        else:
            table.delete(row).raise_for_errors()
            del self.alive[key]

    def expected(self) -> dict[tuple[str, int], int]:
        return {(self.name, n): v for n, v in self.alive.items()}


class Race(Worker):
    """Takes the next free number in competition with others: a counter of conditional inserts.

    If a retry of a successful insert got `already_present`, no worker would own that number.
    """

    OWNER = "race"

    def __init__(self, name: str, connect: Callable[[], Client], table: str, seed: int) -> None:
        super().__init__(name, connect, table, seed)
        self.next = 0
        self.won: list[int] = []

    def step(self, client: Client, table: Table) -> None:
        result = table.insert(rows(self.OWNER, [self.next], [self.next], self.name))
        codes = result.errors.column("code").to_pylist()
        assert codes in ([], ["already_present"]), codes
        if not codes:
            self.won.append(self.next)
        self.next += 1


class Reader(Worker):
    """Reads the rows of other workers: never older than the writes acknowledged when the read began."""

    def __init__(
        self, name: str, connect: Callable[[], Client], table: str, seed: int,
        inserts: list[Inserts], versions: list[Versions],
    ) -> None:  # fmt: skip
        super().__init__(name, connect, table, seed)
        self.inserts, self.versions = inserts, versions

    def step(self, client: Client, table: Table) -> None:
        if self.random.random() < 0.8:
            self._one_row(table)
        else:
            self._snapshot(client, table)

    def _one_row(self, table: Table) -> None:
        writer = self.random.choice(self.versions)
        key = self.random.randrange(writer.KEYS)
        least = writer.done[key]
        row = table.get({"owner": writer.name, "n": key})
        found = row["v"] if row else 0
        most = writer.begun[key]
        assert least <= found <= most, f"{writer.name}/{key}: {found}, not in {least}..{most}"

    def _snapshot(self, client: Client, table: Table) -> None:
        writer = self.random.choice(self.inserts)
        least = writer.sent
        scan = table.scan(["n"], where=f"owner = '{writer.name}'")
        counts = [scan.count(), scan.count(), len(scan.to_arrow())]
        most = writer.sent + BATCH
        assert len(set(counts)) == 1, f"one snapshot of {writer.name} has {counts} rows"
        assert least <= counts[0] <= most, f"{writer.name}: {counts[0]}, not in {least}..{most}"


W = TypeVar("W", bound=Worker)


class Crew(Generic[W]):
    """Workers that are started and stopped together.

    Attributes:
        workers: all of them.
    """

    workers: Sequence[W]

    def __enter__(self) -> Self:
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def check(self) -> None:
        """Raise the error that stopped a worker, if any."""
        for worker in self.workers:
            if worker.error is not None:
                raise AssertionError(f"{worker.name}: {worker.error!r}") from worker.error

    def finish(self) -> None:
        """Stop all workers after their current operations."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            if worker.ident is not None:
                worker.join(120)
                assert not worker.is_alive(), f"{worker.name} did not end"


class Workload(Crew[Worker]):
    """All workers of one run.

    Args:
        connect: returns a client.
        table: table created by `create`.
        seed: seed of the workers' choices.
    """

    def __init__(self, connect: Callable[[], Client], table: str, seed: int) -> None:
        self.inserts = [Inserts(f"insert-{i}", connect, table, seed) for i in range(2)]
        self.versions = [Versions(f"version-{i}", connect, table, seed) for i in range(2)]
        self.races = [Race(f"race-{i}", connect, table, seed) for i in range(2)]
        lives = [Lives("life-0", connect, table, seed)]
        readers = [Reader("reader-0", connect, table, seed, self.inserts, self.versions)]
        self.workers = [*self.inserts, *self.versions, *self.races, *lives, *readers]

    @property
    def acknowledged(self) -> int:
        """Operations acknowledged so far, over all workers."""
        return sum(w.acknowledged for w in self.workers)

    def verify(self, found: pa.Table) -> int:
        """Compare a scan of the whole table with the acknowledged writes; return its rows.

        Raises:
            AssertionError: lost rows, rows that were never written, or wrong values.
        """
        own = {w.name for w in self.workers}
        seen: dict[tuple[str, int], int] = {}
        won: dict[int, str] = {}
        for owner, n, v, by in zip(*(c.to_pylist() for c in found.columns), strict=True):
            if owner == Race.OWNER:
                assert v == n, f"race {n}: {v}"
                won[n] = by
            elif owner in own:
                assert (owner, n) not in seen, f"{owner}/{n} exists twice"
                seen[owner, n] = v
        expected = {k: v for w in self.workers for k, v in w.expected().items()}
        lost = sorted(expected.keys() - seen.keys())
        foreign = sorted(seen.keys() - expected.keys())
        wrong = [k for k in expected if k in seen and expected[k] != seen[k]]
        assert not lost, f"lost {len(lost)}: {lost[:5]}"
        assert not foreign, f"{len(foreign)} that were never written: {foreign[:5]}"
        assert not wrong, f"wrong {len(wrong)}: {[(k, expected[k], seen[k]) for k in wrong[:5]]}"
        claimed = {n: r.name for r in self.races for n in r.won}
        assert sum(len(r.won) for r in self.races) == len(claimed), "one number was won twice"
        assert claimed == won, f"won {len(claimed)} numbers, the table has {len(won)}"
        return len(seen) + len(won)
