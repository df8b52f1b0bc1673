"""Chains of rows, each of which names the one before: a row lost, doubled or undone breaks one (Kudu's test).

Each worker grows some chains with keys drawn at random, so that adjacent rows are in different tablets, and
marks rows that it wrote before, so that updates are in flight too. It records the rows that must exist.
Some times are recorded with the lengths of the chains: a snapshot at such a time has each chain from its end
back to its beginning without a missing link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nyala.client import Client, Table
from nyala.common.partitioning.partition_spec import Hash, Partition
from tests.cluster.support.workload import Crew, Worker
from tests.waiting import wait_until

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("link", pa.int64()),
        ("chain", pa.string()),
        ("place", pa.int64()),
        ("marked", pa.bool_()),
    ]
)
CHAINS = 4
NONE = -1
"""Link of a chain's first row."""
FILLER = ""
"""Chain number of rows that only make a tablet large."""
MARK_RATE = 0.3


def create(client: Client, name: str, buckets: int = 1) -> Table:
    """Create the table of the chains."""
    partition = Partition(hash=[Hash(["key"], buckets)]) if buckets > 1 else None
    return client.create_table(name, SCHEMA, ["key"], partition)


def fill(table: Table, count: int) -> None:
    """Add rows outside of the chains, with keys that are not positive."""
    for first in range(0, count, 20_000):
        numbers = range(first, min(first + 20_000, count))
        rows = [(-n - 1, NONE, FILLER, n, False) for n in numbers]
        table.insert(_rows(rows, SCHEMA)).raise_for_errors()


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, and the minimum and maximum length of each chain at it.

    Attributes:
        at: hybrid time.
        least: rows by chain that were acknowledged before that time.
        most: rows by chain that were sent before the first read at that time.
    """

    at: int
    least: dict[str, int]
    most: dict[str, int]


class Links(Worker):
    """Grows `CHAINS` chains by a row each in one insert; sometimes marks rows written before.

    Attributes:
        keys: keys of the rows of each chain, in order, rows in flight included.
        acked: number of acknowledged rows of each chain.
        marked: keys of rows whose mark is acknowledged.
    """

    def __init__(self, name: str, connect: Callable[[], Client], table: str, seed: int) -> None:
        super().__init__(name, connect, table, seed)
        self.keys: dict[str, list[int]] = {f"{name}.{n}": [] for n in range(CHAINS)}
        self.acked = 0
        self.marked: set[int] = set()

    def step(self, client: Client, table: Table) -> None:
        if self.acked and self.random.random() < MARK_RATE:
            self._mark(table)
        rows = []
        for chain, keys in self.keys.items():
            link = keys[-1] if keys else NONE
            keys.append(self.random.getrandbits(62))
            rows.append((keys[-1], link, chain, len(keys) - 1, False))
        table.insert(_rows(rows, SCHEMA)).raise_for_errors()
        self.acked += 1

    def _mark(self, table: Table) -> None:
        chosen = [self.random.choice(keys[: self.acked]) for keys in self.keys.values()]
        marks = pa.schema([SCHEMA.field("key"), SCHEMA.field("marked")])
        table.update(_rows([(key, True) for key in chosen], marks)).raise_for_errors()
        self.marked.update(chosen)


def _rows(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


class LinkedList(Crew[Links]):
    """All chains of one run, grown during operations on the cluster.

    Args:
        connect: returns a client.
        table: table created by `create`.
        seed: seed of the keys.
        workers: number of threads that grow chains.
    """

    def __init__(
        self, connect: Callable[[], Client], table: str, seed: int, workers: int = 2
    ) -> None:
        self._connect, self._table = connect, table
        self.workers = [Links(f"links-{n}", connect, table, seed) for n in range(workers)]
        self._moments: list[Moment] = []

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged rows."""
        return sum(w.acked for w in self.workers) * CHAINS

    def until_acknowledged(self, count: int) -> None:
        """Wait until that many rows are acknowledged."""

        def grown() -> bool:
            self.check()
            return self.acknowledged >= count

        wait_until(grown, f"{count} rows of chains")

    def verify(self) -> int:
        """Read the chains as of now, and as of each recorded time; return the present rows.

        Raises:
            AssertionError: a chain is broken, shorter than acknowledged, or has rows that were never written.
        """
        self.check()
        with self._connect() as client:
            table = client.table(self._table)
            marked = {key for w in self.workers for key in w.marked.copy()}
            least = {c: w.acked for w in self.workers for c in w.keys}
            at = client.now()  # may lie ahead of a leader's clock, until it is read at
            table.scan(at=at).count()
            most = {c: len(k) for w in self.workers for c, k in w.keys.items()}
            self._moments.append(Moment(at, least, most))
            for moment in self._moments:
                found = table.scan(at=moment.at).to_arrow()
                rows = self._verify(found, moment)
            keys, marks = found.column("key").to_pylist(), found.column("marked").to_pylist()
            unmarked = marked - {k for k, m in zip(keys, marks, strict=True) if m}
            assert not unmarked, f"{len(unmarked)} marks are lost: {sorted(unmarked)[:5]}"
        return rows

    def _verify(self, found: pa.Table, moment: Moment) -> int:
        chains: dict[str, dict[int, tuple[int, int]]] = {c: {} for c in moment.least}
        keys = found.column("key").to_pylist()
        assert len(set(keys)) == len(keys), "a key exists twice"
        columns = (found.column(n).to_pylist() for n in ("link", "chain", "place"))
        for key, link, chain, place in zip(keys, *columns, strict=True):
            if chain == FILLER:
                continue
            assert place not in chains[chain], f"{chain} has two rows at {place}"
            chains[chain][place] = key, link
        written = {c: k for w in self.workers for c, k in w.keys.items()}
        for chain, rows in chains.items():
            size, what = len(rows), f"{chain} at {moment.at}"
            assert moment.least[chain] <= size <= moment.most[chain], (
                f"{what} has {size} rows, not {moment.least[chain]} to {moment.most[chain]}"
            )
            before = NONE
            for place in range(size):
                assert place in rows, f"{what} has no row at {place} of {size}: a link is missing"
                key, link = rows[place]
                assert link == before, f"{what}: row {place} names {link}, not {before}"
                assert key == written[chain][place], f"{what}: row {place} has another key"
                before = key
        return len(keys)
