"""Errors state the correct outcome of their call after a fault at any of its steps.

Each call runs once undisturbed, which counts its steps; then repeatedly with a fault at one of them.
An error that states that nothing happened is compared with what another client reads, also a while later.
"""

from itertools import product
from typing import Any

import pytest

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.results import PartlyWritten
from nyala.client.write.batcher import BatchLimits
from nyala.common.errors import (
    NotReady,
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    has_no_effect,
)
from nyala.wire.proto import nyala_pb2 as pb
from tests.enough import enough
from tests.sim.faults.call_faults import KINDS, PHASES, CallFault, Steps
from tests.sim.runs.error_calls import (
    CALLS,
    CUT,
    READ_ROWS,
    TABLE,
    Call,
    Create,
    Feed,
    Get,
    Scan,
    Write,
    WriteMany,
)
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.world.loop import run

TIMEOUT_MS = 2_500
LATER_US = 3_000_000
VICTIM = ClientOptions(timeout_ms=TIMEOUT_MS, limits=BatchLimits(batch_rows=20))
PER_STEP = 2
"""Kinds of faults at each step, in turn; more where a call has few steps."""
AT_LEAST = 18
MOST_STEPS = 12
IN_GATE = (Create, Write, WriteMany, Get, Scan, Feed)
"""Calls that are tried in the gate, the others in the full run."""


class Bench:
    """One cluster, an undisturbed client, and the counts of outcomes."""

    def __init__(self, cluster: SimCluster, admin: ClientCore) -> None:
        self.cluster, self.admin = cluster, admin
        self.admin_process = cluster.clients[0]
        self.number = 0
        self.outcomes: dict[str, int] = {}

    async def ask(self, fn: Any, *args: Any) -> Any:
        return await self.cluster.run(self.admin_process, fn, *args)

    async def once(self, kind: type[Call], fault: CallFault | None) -> int:
        """Run a call; return the number of its steps. Afterwards the fault is undone."""
        self.number += 1
        call = kind(self.number)
        await self.ask(call.prepare, self.admin)
        core = self.cluster.client(VICTIM)
        victim = self.cluster.clients[-1]
        steps = Steps(self.cluster, victim, core.env.rpc)
        object.__setattr__(core.env, "rpc", steps)
        await victim.run(call.begin, core)
        steps.count, steps.fault = 0, fault
        error: NyalaError | None = None
        try:
            await victim.run(call.act, core)
        except NyalaError as err:
            error = err
        taken = steps.count
        steps.mend()
        await self.ask(self.whole)
        await self.judge(call, error, fault)
        await victim.run(core.close)
        victim.kill()
        return taken

    async def whole(self) -> None:
        """Wait until all servers run, and until delayed messages have arrived."""
        await self.cluster._all_there(self.admin)
        await self.cluster.loop.delay(LATER_US)
        await self.admin.describe(TABLE)

    async def judge(self, call: Call, error: NyalaError | None, fault: CallFault | None) -> None:
        what = f"{type(call).__name__} with {fault}: {error!r}"
        name = "done" if error is None else type(error).__name__
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if call.reads:
            assert error is None or has_no_effect(error), what
            return
        done = await self.ask(call.done, self.admin)
        if error is None or isinstance(error, NotReady):
            assert all(done), f"{what}, and it had no effect: {done}"
        elif has_no_effect(error):
            assert not any(done), f"{what}, and it had an effect: {done}"
        elif isinstance(error, PartlyWritten):
            open_, lost = error.unknown.to_pylist(), error.not_written.to_pylist()
            lost += range(error.next_row, len(done))
            assert not any(done[row] for row in lost), what
            assert all(d for row, d in enumerate(done) if row not in (*open_, *lost)), what
            assert error.rows == len(done) - len(open_) - len(lost), what
        else:
            assert isinstance(error, OutcomeUnknown | SessionExpired), what


def call_faults(steps: int) -> list[CallFault]:
    """Return faults for every step, with alternating kinds."""
    kinds = list(product(PHASES, KINDS, (True, False)))
    chosen: list[CallFault] = []
    steps = min(steps, MOST_STEPS)
    for at in range(1, steps + 1):
        for _ in range(max(PER_STEP, AT_LEAST // steps)):
            phase, kind, wide = kinds[len(chosen) * 7 % len(kinds)]
            chosen.append(CallFault(at, phase, kind, wide))
    return chosen


def bench(work: Any, seed: int) -> Bench:
    made: list[Bench] = []

    async def main(loop: Any) -> None:
        cluster = SimCluster(loop, seed)
        admin = await cluster.start()
        made.append(Bench(cluster, admin))
        table = await made[0].ask(admin.ddl.create_table, TABLE, SCHEMA, CUT, 3, {})
        keys = list(range(-READ_ROWS, 0))
        batch = rows_of(keys, keys)

        async def fill() -> None:
            await admin.session.write(
                table, pb.INSERT, batch, all_or_nothing=False, timeout_ms=30_000
            )

        await made[0].ask(fill)
        await work(made[0])

    run(main, max_time_s=36_000)
    return made[0]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k in IN_GATE else pytest.mark.full) for k in CALLS],
    ids=lambda k: k.__name__,
)
def test_error_at_each_step_states_correct_outcome_of_call(kind):
    async def work(at: Bench) -> None:
        steps = await at.once(kind, None)
        assert steps > 0
        for fault in call_faults(steps):
            await at.once(kind, fault)

    found = bench(work, seed=CALLS.index(kind))
    print(kind.__name__, found.outcomes)
    enough(set(found.outcomes) - {"done"}, "a fault had an effect")
