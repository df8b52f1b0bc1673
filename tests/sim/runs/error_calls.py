"""The calls of a client, each with its preparation and a check of its effect."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.core import ClientCore
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import NotFound
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA
from tests.sim.systems.table_client import rows_of

TABLE = "t"
CUT = Partition(hash=[Hash(["k"], 2)])
READ_ROWS = 10


class Call:
    """One kind of call. `number` makes names and keys unique to each run."""

    reads = False

    def __init__(self, number: int) -> None:
        self.number = number

    async def prepare(self, admin: ClientCore) -> None:
        """Create the tables of the call."""

    async def begin(self, core: ClientCore) -> None:
        """Take the client's steps before the call, without faults."""

    async def act(self, core: ClientCore) -> Any:
        """Call."""

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        """Return whether each part of it has taken effect."""
        return ()


class Create(Call):
    async def act(self, core: ClientCore) -> Any:
        return await core.ddl.create_table(f"n{self.number}", SCHEMA, CUT, 3, {})

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        return [f"n{self.number}" in {t.name for t in await admin.tables()}]


class Drop(Call):
    async def prepare(self, admin: ClientCore) -> None:
        await admin.ddl.create_table(f"n{self.number}", SCHEMA, None, 3, {})

    async def act(self, core: ClientCore) -> Any:
        return await core.ddl.drop_table(f"n{self.number}")

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        return [f"n{self.number}" not in {t.name for t in await admin.tables()}]


class Recall(Drop):
    async def prepare(self, admin: ClientCore) -> None:
        await super().prepare(admin)
        self.id = (await admin.open_table(f"n{self.number}")).id
        await admin.ddl.drop_table(f"n{self.number}", 3600)

    async def act(self, core: ClientCore) -> Any:
        return await core.ddl.recall_table(self.id)

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        return [not exists for exists in await super().done(admin)]


class Alter(Call):
    async def begin(self, core: ClientCore) -> None:
        self.table = await core.open_table(TABLE)

    async def act(self, core: ClientCore) -> Any:
        steps = AlterSteps(self.table)
        steps.add_column(f"c{self.number}", pa.int64())
        return await core.ddl.alter_table(self.table, steps.steps)

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        return [f"c{self.number}" in (await admin.open_table(TABLE)).schema.by_name]


class Write(Call):
    rows = 3

    async def begin(self, core: ClientCore) -> None:
        self.table = await core.open_table(TABLE)
        self.keys = [self.number * 1_000 + n for n in range(self.rows)]

    async def act(self, core: ClientCore) -> Any:
        return await core.session.write(
            self.table, pb.INSERT, rows_of(self.keys, self.keys), all_or_nothing=False,
            timeout_ms=core.options.timeout_ms,
        )  # fmt: skip

    async def done(self, admin: ClientCore) -> Sequence[bool]:
        table = await admin.open_table(TABLE)
        return [row is not None for row in await admin.get(table, rows_of(self.keys), ("v",))]


class WriteMany(Write):
    rows = 200


class Get(Call):
    reads = True

    async def begin(self, core: ClientCore) -> None:
        self.table = await core.open_table(TABLE)

    async def act(self, core: ClientCore) -> Any:
        rows = await core.get(self.table, rows_of(list(range(-READ_ROWS, 0))), ("k",))
        assert [r and r["k"] for r in rows] == list(range(-READ_ROWS, 0))


class Scan(Get):
    spec = ReadSpec(columns=("k",))

    async def act(self, core: ClientCore) -> Any:
        tokens = await core.reader.tokens(self.table, self.spec, core.options.timeout_ms)
        batches = await core.reader.collect_all(tokens)
        keys = {k for some in batches for b in some for k in b.column("k").to_pylist()}
        assert set(range(-READ_ROWS, 0)) <= keys


class Feed(Scan):
    spec = ReadSpec(columns=("k",), changes=True, since=1)


class Hold(Get):
    async def act(self, core: ClientCore) -> Any:
        holding = await core.hold(self.table, None, 1_000)
        await holding.release()


class Lists(Call):
    reads = True

    async def act(self, core: ClientCore) -> Any:
        assert TABLE in {t.name for t in await core.tables()}
        assert (await core.describe(TABLE)).table.name == TABLE
        with contextlib.suppress(NotFound):
            await core.open_table("nothing")
            raise AssertionError("a table that does not exist was opened")


class Now(Call):
    reads = True

    async def act(self, core: ClientCore) -> Any:
        assert await core.now()


CALLS: tuple[type[Call], ...] = (
    Create, Drop, Recall, Alter, Write, WriteMany, Get, Scan, Feed, Hold, Lists, Now,
)  # fmt: skip
