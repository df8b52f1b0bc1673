"""A transaction whose coordinator, client or tablet leader is killed at some phase: all rows, or none."""

from collections.abc import Callable
from typing import Any

import pytest

from nyala.client.transactions.staged_parts import StagedParts
from nyala.common.errors import NyalaError, OutcomeUnknown, TransactionDenied
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.transactions.accounts import balances, commit, stage
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess

KEYS = list(range(12))
OLD, NEW = dict.fromkeys(KEYS, 1), dict.fromkeys(KEYS, 2)
PHASES = ("checked", "preparing", "proposed", "decided", "resolved")


def phase_of(cluster: SimCluster, since: int) -> str:
    """Return the phase of the only transaction under way, as the leader master knows it.

    Args:
        cluster: the cluster.
        since: commit time of the transaction before.
    """
    process = cluster.leader_master()
    leading = None if process is None else getattr(process.server, "leading", None)
    term = None if leading is None else leading.term
    if term is None:
        return ""
    found, rows = term.transactions, term.catalog.decisions.rows
    for attempted in found.attempts.under_way.values():
        return "proposed" if attempted.decided_at else "preparing"
    last = max(rows.values(), key=lambda r: r.at, default=None)
    if last is None or last.at <= since:
        return "checked" if found.coordinator.running else ""
    return "resolved" if found.resolver.is_resolved(last.transaction) else "decided"


def at_phase(told: "Story", phase: str, act: Callable[[], Any]) -> list[float]:
    """Act once as soon as a phase is reached; return when, in a list that is empty before."""
    done: list[float] = []
    cluster = told.cluster
    look = cluster.loop.after_step

    def step() -> None:
        assert look is not None
        look()
        if not done and phase_of(cluster, told.since) == phase:
            done.append(cluster.loop.time())
            act()

    cluster.loop.after_step = step
    return done


async def outcome(core: Any, parts: StagedParts) -> str:
    try:
        await parts.coordination.commit(parts.named())
    except TransactionDenied:
        return "denied"
    except OutcomeUnknown:
        return "unknown"
    except NyalaError:
        return "aborted"
    finally:
        parts.end("over")
    return "committed"


class Story:
    """A table with old rows, and a transaction that writes new ones."""

    def __init__(self, cluster: SimCluster, table: Any, core: Any) -> None:
        self.cluster, self.table, self.core = cluster, table, core
        self.process = cluster.clients[-1]
        self.since = 0

    async def settled(self) -> dict[int, int]:
        """Return the rows as a new client reads them, once it can also write to every tablet."""
        core = self.cluster.client()
        process = self.cluster.clients[-1]

        async def work() -> dict[int, int]:
            table = await core.open_table("t")
            for _ in range(60):
                try:
                    found = await balances(core, table, KEYS)
                    others = [k + 1000 for k in KEYS]
                    await core.session.write(
                        table,
                        pb.UPSERT,
                        rows_of(others, others),
                        all_or_nothing=False,
                        timeout_ms=5_000,
                    )
                    return found
                except NyalaError:
                    await core.env.tasks.sleep_ms(500)
            raise AssertionError("the tablets take no writes, or cannot be read")

        found: Any = await self.cluster.run(process, work)
        return dict(found)


def story(work: Callable[[Story], Any], seed: int = 5) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        table = await cluster.create_table(core, "t", tablets=4)
        told = Story(cluster, table, core)
        first: Any = await cluster.run(told.process, commit, core, table, OLD)
        told.since = first.at
        await work(told)
        cluster.look()

    run(main, max_time_s=400)


@pytest.mark.full
@pytest.mark.parametrize("phase", PHASES)
def test_coordinator_killed_at_a_phase_leaves_all_rows_or_none(phase):
    async def work(told: Story) -> None:
        cluster = told.cluster
        parts: Any = await cluster.run(told.process, stage, told.core, told.table, NEW)
        killed: list[SimProcess] = []

        def kill() -> None:
            leader = cluster.leader_master()
            assert leader is not None
            killed.append(leader)
            cluster.loop.call_soon(leader.kill)

        reached = at_phase(told, phase, kill)
        ended = await cluster.run(told.process, outcome, told.core, parts)
        assert reached, f"{phase} was not reached"
        found = await told.settled()
        assert found in (OLD, NEW)
        assert ended in ("committed", "unknown") or found == OLD
        assert ended != "committed" or found == NEW
        if phase in ("decided", "resolved"):
            assert found == NEW, "a committed row was not resolved by the next leader"
        for process in killed:
            process.restart()
        assert await told.settled() == found

    story(work)


@pytest.mark.full
@pytest.mark.parametrize("phase", ["preparing", "proposed", "decided"])
def test_tablet_leader_killed_at_a_phase_leaves_all_rows_or_none(phase):
    async def work(told: Story) -> None:
        cluster = told.cluster
        parts: Any = await cluster.run(told.process, stage, told.core, told.table, NEW)
        killed: list[SimProcess] = []

        def kill() -> None:
            leader = cluster.leader_of(told.table.tablets[0].id)
            assert leader is not None
            killed.append(leader)
            cluster.loop.call_soon(leader.kill)

        assert not at_phase(told, phase, kill)
        ended = await cluster.run(told.process, outcome, told.core, parts)
        assert killed, f"{phase} was not reached"
        found = await told.settled()
        assert found in (OLD, NEW)
        assert ended != "committed" or found == NEW
        assert ended not in ("denied", "aborted") or found == OLD
        killed[0].restart()
        assert await told.settled() == found

    story(work)


@pytest.mark.full
@pytest.mark.parametrize("phase", ["", "preparing", "proposed", "decided"])
def test_client_killed_at_a_phase_leaves_all_rows_or_none_and_no_prepared_tablet(phase):
    async def work(told: Story) -> None:
        cluster = told.cluster
        core = cluster.client()
        process = cluster.clients[-1]
        table = await cluster.run(process, core.open_table, "t")
        parts: Any = await cluster.run(process, stage, core, table, NEW)
        if phase:
            reached = at_phase(told, phase, lambda: cluster.loop.call_soon(process.kill))
            process.run(outcome, core, parts)
            await cluster.until(lambda: reached, f"{phase} is reached")
        else:
            process.kill()
        await cluster.loop.delay(3_000_000)
        found = await told.settled()
        assert found == (NEW if phase else OLD), (
            "what was asked for is carried out without the client"
        )

    story(work)


def test_table_dropped_between_stage_and_commit_denies_the_commit():
    async def work(told: Story) -> None:
        cluster, core = told.cluster, told.core
        other: Any = await cluster.create_table(core, "other")
        parts: Any = await cluster.run(told.process, stage, core, told.table, NEW)

        async def more() -> None:
            upload = await parts.part("-").begin(
                other, pb.UPSERT, all_or_nothing=False, timeout_ms=20_000
            )
            await upload.take(rows_of([1], [1]))
            await upload.finish()

        await cluster.run(told.process, more)
        await cluster.run(told.process, core.ddl.drop_table, "other", 0)
        assert await cluster.run(told.process, outcome, core, parts) == "denied"
        assert await told.settled() == OLD

    story(work)
