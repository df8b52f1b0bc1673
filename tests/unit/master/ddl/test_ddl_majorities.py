"""Definitions succeed while a majority of masters is up, wait while it is not, and resume when it is back."""

import pytest

from nyala.client.cluster.ddl import Definitions
from nyala.common.errors import OutcomeUnknown, TimedOut
from tests.unit.master.support.ddl_cluster import with_cluster


@pytest.mark.row("S0.1")
@pytest.mark.parametrize(("masters", "down"), [(3, 1), (5, 2)])
def test_definitions_require_a_majority_of_masters(masters, down):
    async def work(ddl):
        cluster = ddl.cluster
        first = await ddl.create("first")
        ddl.kill_leader()
        for process in [m for m in cluster.masters if m.alive][: down - 1]:
            process.kill()
        second = await ddl.create("second")
        await ddl.alter(second, ("rename", "third"))
        last = next(m for m in cluster.masters if m.alive)
        last.kill()
        core = ddl.core
        brief = Definitions(
            core.env, core.masters, core.locations, b"b" * 16, timeout_ms=3_000, clock=core.clock
        )
        with pytest.raises((TimedOut, OutcomeUnknown)):
            await ddl.ask(brief.drop_table, "third")
        assert ddl.leading() is None
        last.start()
        await ddl.ask(ddl.core.ddl.drop_table, "first")
        tables = {t.name for t in await ddl.ask(ddl.core.tables)}
        assert tables <= {"third"}, "the unanswered drop may have taken effect since"
        assert first.id not in [t.id for t in await ddl.ask(ddl.core.tables)]
        await ddl.create("first")

    with_cluster(work, masters=masters)
