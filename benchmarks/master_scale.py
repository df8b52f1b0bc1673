"""Cost of a catalog of many tables: a batch, the load by a new leader, heartbeats, look-ups."""

import asyncio
import time
from collections.abc import Callable

from benchmarks.master_catalog import TABLETS_EACH, TERM, Large, heartbeat, large, resident_kb
from benchmarks.report import Report
from nyala.common.options import Options
from nyala.master.catalog.catalog import Catalog
from nyala.master.orders import reconcile
from nyala.master.orders.dispatcher import MAX_REPLICAS_CHECKED
from nyala.master.repair.repairer import Repairer
from nyala.master.repair.round_robin import ReplicaRoundRobin

BATCH_TABLETS = 1000
BATCH_KB = 150
SEED_KB = 117
SMALL_TABLES = 200
REBUILT_S = 2.0
TIMES_SMALL = 1.5
ROUNDS = 3
HEARTBEATS = 1000
TICK_MS = 10


async def measure(report: Report, tables: int) -> None:
    """Run the benchmark."""
    with large() as one:
        size = await one.create("one", BATCH_TABLETS)
        report.add(
            f"a table of {BATCH_TABLETS} tablets x 3 columns x 3 replicas: its one batch",
            size / 1000, "KB", f"the seed: about {SEED_KB} KB", at_most=BATCH_KB,
        )  # fmt: skip
    with large() as few:
        await few.fill(SMALL_TABLES)
        small_us = await _heartbeat_us(few)
    with large() as many:
        await many.fill(tables)
        await _rebuilt(report, many, tables)
        await _unchanged(report, many, small_us)
        _looks(report, many)


async def _rebuilt(report: Report, many: Large, tables: int) -> None:
    found, stalls = [], []
    many.catalog = Catalog()
    empty_kb = resident_kb()
    for _ in range(ROUNDS):
        many.catalog = Catalog()
        stall = asyncio.create_task(_longest_stall())
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        many.catalog = await many.rebuilt()
        found.append(time.perf_counter() - began)
        stall.cancel()
        stalls.append(await stall)
    tablets = tables * TABLETS_EACH
    report.add(
        f"{tables:,} tables, {tablets:,} tablets: a new leader's memory from the rows, median",
        sorted(found)[ROUNDS // 2], "s",
        f"{min(found):.2f} to {max(found):.2f}; the loop stood still for {max(stalls):.0f} ms at most",
        at_most=REBUILT_S,
    )  # fmt: skip
    report.add(
        "memory of a tablet and its share of a table", (resident_kb() - empty_kb) / tablets, "KiB"
    )


async def _longest_stall() -> float:
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now = time.perf_counter()
            longest, last = max(longest, 1000 * (now - last) - TICK_MS), now
    except asyncio.CancelledError:
        return longest


async def _heartbeat_us(made: Large) -> float:
    """Return the CPU of an unchanged server's heartbeat, without the remote call."""
    request = heartbeat(made.infos[0])
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(HEARTBEATS):
            await made.take(request)
        best = min(best, (time.process_time() - began) / HEARTBEATS)
    return best * 1e6


async def _unchanged(report: Report, many: Large, small_us: float) -> None:
    us = await _heartbeat_us(many)
    report.add(
        f"an unchanged server's heartbeat at {many.catalog.size:,} tablets: CPU", us, "us",
        f"{small_us:.1f} us at {SMALL_TABLES * TABLETS_EACH:,}: O(1) is about the same",
        at_most=TIMES_SMALL * small_us,
    )  # fmt: skip


def _looks(report: Report, many: Large) -> None:
    servers = many.servers
    known = servers.known_in(TERM, servers.alive(0))
    turns = ReplicaRoundRobin(MAX_REPLICAS_CHECKED)
    repairs = Repairer(many.catalog, servers, TERM, Options(), lambda: 0)
    repairs.due_orders()
    for what, work in (
        ("orders are due", lambda: reconcile.orders_for(many.catalog, known, turns.next)),
        ("repairs are due", repairs.due_orders),
    ):
        ms = 1000 * min(_cpu_s(work) for _ in range(ROUNDS))
        report.add(f"one look at which {what}, {many.catalog.size:,} tablets: CPU", ms, "ms")


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
