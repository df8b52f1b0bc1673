"""Clients that read and write a table whose ranges another client changes, and a check of their answers.

Each of them uses the table as it was opened at the beginning. The table's history, read at the end
by a client that opens it then, is compared with all answers to clients: see `Judge`.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.follower import Follower, FollowOptions, follow
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import InvalidArgument, NotReady, NyalaError, OutcomeUnknown, Retryable
from nyala.common.expressions.where import parse
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.world.loop import SimLoop, seeded

WIDTH, RANGES = 10, 5
KEYS = WIDTH * RANGES
FIRST = ((0, 10), (10, 20), (20, 30))
OPTIONS = ClientOptions(timeout_ms=15_000)
FAR = float("inf")

MAX_VALUE = 3000
SOME_VALUES = " or ".join(f"(v >= {low} and v < {low + 50})" for low in range(50, MAX_VALUE, 100))
"""Condition of filtered feeds, which a row matches with some of its values below `MAX_VALUE`."""

State = dict[int, int]
"""The value of each key."""
Change = tuple[int, int, str, int | None]
"""Stamp, key, operation, value."""


@dataclass(slots=True)
class Span:
    """A range that existed in virtual time at least from `added` until `dropping`."""

    low: int
    high: int
    added: float
    dropping: float = FAR


@dataclass(slots=True)
class Seen:
    """Answers to clients.

    Attributes:
        writes: acknowledged writes: (timestamp, key, value).
        newest: highest timestamp of a write.
        scans: (time, condition, rows) of each scan.
        counts: (time, rows) of each count.
        feeds: (since, until, net, changes) of each feed.
        copies: (position, filtered, rows) of the copies that followers of the feed make.
        spans: the ranges that existed.
        done: number of operations of each kind.
        last_value: that a writer has used; they count from 1 in each run, also of one process.
    """

    writes: list[tuple[int, int, int]] = field(default_factory=list)
    newest: int = 0
    scans: list[tuple[int, tuple[int, int], State]] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)
    feeds: list[tuple[int, int, bool, list[Change]]] = field(default_factory=list)
    copies: list[tuple[int, bool, State]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    last_value: int = 0


class Client(ABC):
    """One client of the table, as it was opened at the beginning.

    Attributes:
        stopped: whether it ends as soon as it is idle.
    """

    def __init__(
        self, cluster: SimCluster, seen: Seen, opened: OpenTable, name: str, pause_us: float
    ) -> None:
        self.core: ClientCore = cluster.client(OPTIONS)
        self.process = cluster.clients[-1]
        self.stopped = False
        self._loop: SimLoop = cluster.loop
        self._seen = seen
        self._opened = opened
        self._pause_us = pause_us
        self._rng: random.Random = seeded(cluster.seed, "ranges", name)

    def _table(self) -> OpenTable:
        """The table as it was opened, without the partitions that the client has fetched since."""
        return replace(self._opened)

    async def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / self._pause_us))
            try:
                await self._once()
            except (Retryable, OutcomeUnknown) as err:
                self._seen.done[type(err).__name__] += 1

    @abstractmethod
    async def _once(self) -> None:
        """Do one operation."""


class Definer(Client):
    """Adds, drops and replaces ranges. It is the only client that alters them."""

    async def _once(self) -> None:
        existing = [s for s in self._seen.spans if s.dropping == FAR]
        holes = [low for low in range(0, KEYS, WIDTH) if all(s.low != low for s in existing)]
        table = await self.core.locations.open("t", OPTIONS.timeout_ms)
        steps = AlterSteps(table)
        kind = self._rng.choice(["add", "add", "drop", "drop", "again", "all"])
        dropped, added = list[Span](), list[int]()
        if kind == "add" and holes:
            added = [self._rng.choice(holes)]
        elif kind == "drop" and len(existing) > 1:
            dropped = [self._rng.choice(existing)]
        elif kind == "again":
            dropped = [self._rng.choice(existing)]
            added = [dropped[0].low]
        elif kind == "all":
            dropped, added = existing, [s.low for s in existing]
        for span in dropped:
            steps.drop_range(span.low, span.high)
            span.dropping = self._loop.time()
        for low in added:
            steps.add_range(low, low + WIDTH)
        if steps.steps:
            await self._alter(kind, table, steps, added)

    async def _alter(
        self, kind: str, table: OpenTable, steps: AlterSteps, added: list[int]
    ) -> None:
        try:
            await self.core.ddl.alter_table(table, steps.steps)
        except (InvalidArgument, NotReady, Retryable, OutcomeUnknown) as err:
            if isinstance(err, InvalidArgument) and "live tablet servers" not in err.message:
                raise
            await self._learn()
            return
        self._seen.done[kind] += 1
        self._seen.spans += [Span(low, low + WIDTH, self._loop.time()) for low in added]

    async def _learn(self) -> None:
        """Read the final state after an alteration that failed or has unknown outcome.

        An alteration may still be executed until its deadline, and slightly longer.
        """
        self._seen.done["unknown"] += 1
        for span in self._seen.spans:
            span.dropping = min(span.dropping, self._loop.time())
        await self._loop.delay(20_000_000)
        while True:
            try:
                table = await self.core.locations.open("t", OPTIONS.timeout_ms)
                break
            except NyalaError:
                await self._loop.delay(1_000_000)
        now = self._loop.time()
        for place in table.tablets:
            low = lower_of(place.partition.range.lower)
            self._seen.spans.append(Span(low, low + WIDTH, now))


class Writer(Client):
    """Writes single rows, each value once in a run."""

    async def _once(self) -> None:
        key, began = self._rng.randrange(KEYS), self._loop.time()
        self._seen.last_value += 1
        value = self._seen.last_value
        batch = rows_of([key], [value])
        session, table = self.core.session, self._table()
        written = await session.write(
            table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=OPTIONS.timeout_ms
        )
        seen, now = self._seen, self._loop.time()
        if written.errors:
            assert [c for _, c, _ in written.errors] == ["no_partition"], written.errors
            for span in seen.spans:
                existed = span.added <= began and now <= span.dropping
                assert not (existed and span.low <= key < span.high), f"{span} refused {key}"
            seen.done["no place"] += 1
            return
        seen.writes.append((written.timestamp, key, value))
        seen.newest = max(seen.newest, written.timestamp)
        seen.done["write"] += 1


class Reader(Client):
    """Scans, counts, and reads the feed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._since = 1
        self._times: list[int] = []

    async def _once(self) -> None:
        what = self._rng.choice(
            [self._scan, self._scan, self._part, self._past, self._count, self._feed]
        )
        await what()
        self._seen.done[what.__name__.strip("_")] += 1

    async def _read(self, **spec: Any) -> tuple[int, list[dict[str, Any]]]:
        """Read at a time above all acknowledged writes, or at the given time."""
        newest = self._seen.newest
        plan = self.core.plan(self._table(), ReadSpec(**spec))
        if self._rng.random() < 0.3:
            await plan.verified()
        parts = await plan.collect()
        assert spec.get("at") or plan.at >= newest, f"read at {plan.at}, after a write at {newest}"
        return plan.at, [row for some in parts for b in some for row in b.to_pylist()]

    async def _scan(self) -> None:
        at, rows = await self._read()
        self._seen.scans.append((at, (0, KEYS), _state(rows)))
        self._times.append(at)

    async def _part(self) -> None:
        low = self._rng.randrange(0, KEYS, WIDTH)
        where = parse(f"k >= {low} and k < {low + WIDTH}", SCHEMA)
        at, rows = await self._read(where=where)
        self._seen.scans.append((at, (low, low + WIDTH), _state(rows)))

    async def _past(self) -> None:
        if self._times:
            at, rows = await self._read(at=self._rng.choice(self._times))
            self._seen.scans.append((at, (0, KEYS), _state(rows)))

    async def _count(self) -> None:
        newest = self._seen.newest
        plan = self.core.plan(self._table(), ReadSpec())
        parts = await plan.collect(count_only=True)
        rows = sum(n for some in parts for b in some for n in b.column("_count").to_pylist())
        assert plan.at >= newest, f"counted at {plan.at}, after a write at {newest}"
        self._seen.counts.append((plan.at, rows))

    async def _feed(self) -> None:
        since = self._rng.choice([self._since, *self._times[-5:]])
        net = self._rng.random() < 0.5
        until, rows = await self._read(changes=True, since=since, net=net)
        self._seen.feeds.append((since, until, net, changes_of(rows)))
        self._seen.done["changes"] += len(rows)
        if since == self._since:
            self._since = until


class FeedFollower(Client):
    """Keeps a copy of the table, or of the rows with some values, by a followed feed.

    Now and then it begins again from its last position, without the release of its hold, as a process that
    was killed does.
    """

    def __init__(self, *args: Any, filtered: bool) -> None:
        super().__init__(*args)
        self._filtered = filtered
        self._copy: State = {}
        self._position = 1
        self._follower: Follower | None = None

    async def _once(self) -> None:
        if self._follower is None:
            where = parse(SOME_VALUES, SCHEMA) if self._filtered else None
            spec = ReadSpec(changes=True, since=self._position, net=False, where=where, before=True)
            options = FollowOptions(poll_ms=1_000, hold_ms=600_000, heartbeat_ms=500)
            self._follower = await follow(self.core, self._table(), spec, options)
        batch = await self._follower.next()
        assert batch is not None
        self._apply(batch)
        if self._rng.random() < 0.05:
            self._follower = None
            self._seen.done["resumed"] += 1

    def _apply(self, batch: ChangeBatch) -> None:
        last = 0
        for row in batch.to_pylist():
            key, old = row["k"], row["_before"]
            known = self._copy.get(key)
            assert known == (None if old is None else old["v"]), (row, known)
            assert (row["_op"] == "insert") == (known is None), (row, known)
            assert last <= row["_timestamp"] <= batch.through, (row, batch)
            last = row["_timestamp"]
            if row["_op"] == "delete":
                self._copy.pop(key, None)
            else:
                self._copy[key] = row["v"]
        self._seen.done["followed"] += batch.num_rows
        assert batch.through >= self._position, f"{batch.through} after {self._position}"
        if batch.through > self._position:
            self._position = batch.through
            self._seen.copies.append((batch.through, self._filtered, dict(self._copy)))
            self._seen.done["copy"] += 1


def lower_of(key: bytes | None) -> int:
    """Return the number of an encoded key of one int64."""
    assert key is not None
    return int.from_bytes(key, "big") - (1 << 63)


def _state(rows: list[dict[str, Any]]) -> State:
    state = {row["k"]: row["v"] for row in rows}
    assert len(state) == len(rows), f"a key twice: {rows}"
    return state


def changes_of(rows: list[dict[str, Any]]) -> list[Change]:
    """Return the changes of a feed, in their order."""
    return [(r["_timestamp"], r["k"], r["_op"], r["v"]) for r in rows]


class Judge:
    """The whole history of the table, with the checks of answers to clients.

    Args:
        history: all changes, read at the end by a client that opened the table then.
    """

    def __init__(self, history: list[Change]) -> None:
        self._history = sorted(history, key=lambda change: change[:2])

    def state(self, at: int) -> State:
        """Return the table at a time."""
        state: State = {}
        for stamp, key, op, value in self._history:
            if stamp > at:
                break
            assert (op == "insert") == (key not in state), f"{op} of {key} at {stamp}: {state}"
            if op == "delete":
                del state[key]
            else:
                assert value is not None
                state[key] = value
        return state

    def check(self, seen: Seen) -> None:
        """Compare all answers to clients with the history.

        Raises:
            AssertionError: with the values.
        """
        written = {(stamp, key, value) for stamp, key, op, value in self._history if op != "delete"}
        for write in seen.writes:
            assert write in written, f"acknowledged, and missing: {write}"
        for at, (low, high), found in seen.scans:
            wanted = {k: v for k, v in self.state(at).items() if low <= k < high}
            assert found == wanted, f"a scan of [{low}, {high}) at {at} gave {found}, not {wanted}"
        for at, rows in seen.counts:
            assert rows == len(self.state(at)), f"{rows} counted at {at}: {self.state(at)}"
        for position, filtered, copy in seen.copies:
            whole = self.state(position).items()
            some = {k: v for k, v in whole if not filtered or (v < MAX_VALUE and v // 50 % 2)}
            assert copy == some, f"followed through {position}: {copy}, not {some}"
        for since, until, net, changes in seen.feeds:
            state, after = self.state(since), self.state(until)
            last = dict.fromkeys((*state, *after), since)
            for stamp, key, op, value in changes:
                assert (op == "insert") == (key not in state), (since, until, stamp, key, op, state)
                assert last.get(key, since) < stamp <= until, (since, until, stamp, key, op)
                last[key] = stamp
                state.pop(key, None)
                if value is not None:
                    state[key] = value
            assert state == after, f"({since}, {until}] made {state}, not {after}"
            if not net:
                wanted_all = [c for c in self._history if since < c[0] <= until]
                found_all = sorted(changes, key=lambda change: change[:2])
                assert found_all == wanted_all, f"({since}, {until}]: {changes}, not {wanted_all}"
