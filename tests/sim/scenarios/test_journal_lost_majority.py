"""Clients of a journal over an unsafe recovery that loses acknowledged steps: no id is ever given twice."""

import pytest

from nyala.client.journal.core import JournalCore
from nyala.journal import steps
from nyala.operate.survivors import ServerEndpoint
from nyala.operate.unsafe_config import execute, plan
from tests.enough import enough
from tests.sim.journals.client import OPTIONS, JournalClient, JournalHistory
from tests.sim.journals.history import ReadLog
from tests.sim.journals.work import RACE, Actor, Racer, Worker
from tests.sim.world.loop import seeded
from tests.unit.journal.journal_model import LOGS
from tests.unit.tserver.support.journal_group import with_journal


@pytest.mark.row("S3.66")
def test_ids_stay_unique_over_unsafe_recovery_under_load():
    async def work(group):
        cluster = group.cluster
        history = JournalHistory(group.tablet)
        actors: list[Actor] = []
        working = []
        for number in range(5):
            core = cluster.client(OPTIONS)
            process, journals = cluster.clients[-1], JournalCore(core)
            opened = await process.run(journals.open, "ops")
            client = JournalClient(cluster.loop, journals, opened, history, process.name)
            kind = Worker if number < 3 else Racer
            actors.append(kind(client, seeded(5, process.name), 60_000))
            working.append(process.run(actors[-1].run))
        await cluster.loop.delay(4e6)
        leader, second, last = group.holders()
        last.kill()
        await cluster.loop.delay(1e6)  # the survivor-to-be lacks what is acknowledged now
        before = history.acknowledged
        leader.kill()
        second.kill()
        await last.start()
        place, keep = ServerEndpoint("", last.address), [group.uuid(last)]
        todo = await group.on(plan, group.core.env, group.tablet, place, keep)
        assert (await group.on(execute, group.core.env, todo)).changed
        await cluster.until(lambda: group.leader is last, "the survivor leads", 60)
        await cluster.until(
            lambda: history.acknowledged >= before + 30, "further steps are acknowledged", 60
        )
        for actor in actors:
            actor.stopped = True
        for task in working:
            await task
        ids: list[int] = []
        data: dict[int, bytes] = {}
        for op in history.ops:
            if isinstance(op.what, steps.Step) and isinstance(op.answer, steps.Done):
                ids += [one for one in op.answer.ids if one]
                changes = zip(op.what.changes, op.answer.ids, strict=True)
                data |= {i: c.data for c, i in changes if isinstance(c, steps.Append)}
        assert len(ids) == len(set(ids))
        enough(len(ids) > 100, f"{len(ids)} ids")
        for log in (*LOGS, RACE):
            _, _, entries, _ = await cluster.clients[-1].run(actors[-1].client.read, ReadLog(log))
            assert all(data.get(i, found) == found for i, found in entries)

    with_journal(work, loses=True)
