"""Look-ups by key as coroutines: the quick way to each tablet's leader first, then the patient one.

The quick way is one message on a long stream (lookups.py). Whatever goes wrong there, the look-up is a
scan token like any other read, which finds its leader by itself until the deadline.
"""

import asyncio
import contextlib

import pyarrow as pa

from nyala.client.locations import LOOKUP_TIMEOUT_MS, Locations, OpenTable, TabletPlace
from nyala.client.lookups import MAX_KEYS, Lookups
from nyala.client.planning import ReadSpec
from nyala.client.reading import Reader
from nyala.common.errors import (
    NotLeader,
    OutcomeUnknown,
    Retryable,
    SchemaMismatch,
    TooLarge,
    Unavailable,
)
from nyala.common.schema import arrow_schema
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import flight
from nyala.wire.proto import reads_pb2

MAX_SHAPES = 64
_Shape = tuple[list[int], pa.Schema]


class Getter:
    """The look-ups of one client. Runs on the client's loop.

    Args:
        env: clock, tasks, rpc.
        locations: learns who leads.
        clock: takes the times that servers read at.
        reader: the patient way.
    """

    def __init__(self, env: Env, locations: Locations, clock: HybridClock, reader: Reader) -> None:
        self._env = env
        self._locations = locations
        self._clock = clock
        self._reader = reader
        self.lookups = Lookups(env)
        self._shapes: dict[tuple[str, int, tuple[str, ...] | None], _Shape] = {}

    async def get(
        self, table: OpenTable, groups: list[tuple[int, pa.RecordBatch]], columns: tuple[str, ...] | None,
        timeout_ms: int,
    ) -> list[list[pa.RecordBatch]]:  # fmt: skip
        """Look keys up, linearizably: for each (tablet number, keys) the rows found, with `_row`."""
        spec = ReadSpec(columns=columns, latest=True)
        if len(groups) == 1:
            return [await self._get(table, *groups[0], spec, timeout_ms)]
        work = (self._get(table, number, keys, spec, timeout_ms) for number, keys in groups)
        return list(await asyncio.gather(*work))

    async def _get(
        self, table: OpenTable, number: int, keys: pa.RecordBatch, spec: ReadSpec, timeout_ms: int
    ) -> list[pa.RecordBatch]:
        """Look keys of one tablet up: few of them on the stream to its leader, once; else by a token."""
        began_us = self._env.clock.monotonic_us()
        tablet = table.tablets[number]
        if keys.num_rows <= MAX_KEYS:
            try:
                return [await self._quickly(table, tablet, keys, spec, timeout_ms)]
            except (Retryable, OutcomeUnknown, SchemaMismatch, TooLarge) as err:
                asked = tablet.leader or ""
                told = err.address if isinstance(err, NotLeader) else None
                self._locations.learn(tablet, asked=asked, leader=None, address=told)
        left_ms = max(1, timeout_ms - (self._env.clock.monotonic_us() - began_us) // 1000)
        if tablet.leader is None:
            with contextlib.suppress(Retryable):
                await self._locations.refresh(table, min(left_ms, LOOKUP_TIMEOUT_MS))
                tablet = table.tablets[number]
        token = self._reader.token(table, tablet, spec, 0, left_ms)
        token.keys_ipc = flight.batch_message(keys)
        return await self._reader.collect(token)

    async def _quickly(
        self, table: OpenTable, tablet: TabletPlace, keys: pa.RecordBatch, spec: ReadSpec, timeout_ms: int
    ) -> pa.RecordBatch:  # fmt: skip
        if tablet.leader is None:
            raise Unavailable(f"no leader of tablet {tablet.id} is known")
        ids, schema = self._shape(table, spec.columns)
        part = reads_pb2.GetPart(
            tablet_id=tablet.id,
            schema_version=table.schema.version,
            column_ids=ids,
            keys_ipc=keys.serialize().to_pybytes(),
        )
        rows, at = await self.lookups.get(tablet.leader, part, schema, timeout_ms)
        self._clock.merge(at)
        return rows

    def _shape(
        self, table: OpenTable, columns: tuple[str, ...] | None
    ) -> tuple[list[int], pa.Schema]:
        """Return the column ids of a look-up, and the schema of its answer."""
        key = table.id, table.schema.version, columns
        found = self._shapes.get(key)
        if found is None:
            schema = table.schema
            chosen = schema.columns if columns is None else [schema.column(n) for n in columns]
            fields = [*arrow_schema(chosen), pa.field("_row", pa.int64(), nullable=False)]
            found = [int(c.id) for c in chosen], pa.schema(fields)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found

    def close(self) -> None:
        """End the streams of look-ups."""
        self.lookups.close()
