"""Servers with chosen outcomes for the tests of uploads."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from nyala.client.deadline import Attempts
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.common.errors import (
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    TimedOut,
)
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.client_bulk import opened

ROWS = 50
TIMEOUT_MS = 1_000


def some(first: int, end: int) -> pa.RecordBatch:
    rows = pa.array(np.arange(first, end))
    return pa.record_batch([rows, rows], names=["k", "v"])


class Tablets:
    """Receives requests in place of servers: each is answered after a time, with outcomes by `failure_of`."""

    def __init__(
        self, env: Env, failure_of: Callable[[list[int]], NyalaError | None], each_ms: int = 5
    ):
        self.env, self.failure_of, self.each_ms = env, failure_of, each_ms
        self.taken: list[int] = []
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self.bad: set[int] = set()
        self.table: Any = None
        self.requests = self.under_way = self.most = 0

    async def deliver(self, table: Any, tablet: Any, op: int, piece: pa.RecordBatch, whole: bool,
                      attempts: Attempts) -> pb.WriteResult:  # fmt: skip
        self.table = table
        rows = piece.column("v").to_pylist()
        self.taken += rows
        self.requests += 1
        self.under_way += len(rows)
        self.most = max(self.most, self.under_way)
        try:
            await self.env.tasks.sleep_ms(self.each_ms)
            if not attempts.left_ms():
                raise TimedOut("no leader took it in time")
            error = self.failure_of(rows)
            if error is not None:
                self.unknown.update(
                    rows if isinstance(error, OutcomeUnknown | SessionExpired) else ()
                )
                raise error
        finally:
            self.under_way -= len(rows)
        if failed := [n for n, row in enumerate(rows) if row in self.bad and whole]:
            errors = [pb.RowError(row=n, code="already_present") for n in failed]
            return pb.WriteResult(row_errors=errors, timestamp=1)
        self.acknowledged.update(rows)
        return pb.WriteResult(rows=len(rows), timestamp=len(self.acknowledged))


def scenario(
    work: Any, failure_of: Any = lambda rows: None, each_ms: int = 5, timeout_ms: int = TIMEOUT_MS,
    bad_rows: Any = (),
):  # fmt: skip
    """Run `work(upload, tablets, loop)` on virtual time; return what it returns, and the tablets.

    With `bad_rows`, which are row errors, the write is all or nothing.
    """

    async def main(loop: SimLoop) -> Any:
        clock, rng = SimClock(loop), random.Random(7)
        env = Env(clock, rng, SystemFiles(), SimTasks(loop, rng), GrpcRpc())
        tablets = Tablets(env, failure_of, each_ms)
        tablets.bad = set(bad_rows)
        bulk = Batcher(env, tablets, HybridClock(clock), BatchLimits(batch_rows=ROWS))
        upload = bulk.begin(opened(), pb.UPSERT, bool(bad_rows), timeout_ms)
        return await work(upload, tablets, loop), tablets

    return run(main)


async def all_of(upload: Any, rows: pa.RecordBatch) -> Any:
    await upload.take(rows)
    return await upload.finish()
