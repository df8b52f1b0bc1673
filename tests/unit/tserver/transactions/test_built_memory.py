"""Memory of rows that are built while they are staged, as a server accounts for it."""

from nyala.replica.memory import MemoryPart
from nyala.tablet.write import built_rows
from tests.unit.tserver.support.staged_group import T1, StagedGroup, with_group


def test_second_flush_frees_built_rows_of_a_tablet_that_has_no_further_writes(monkeypatch) -> None:
    monkeypatch.setattr(built_rows, "LEAST_BATCH_ROWS", 1)
    monkeypatch.setattr(built_rows, "OVERHEAD_BYTES", 0)  # no flush is due

    async def work(group: StagedGroup) -> None:
        result = await group.on(group.stage_in, group.tablet, T1, {1: 1, 2: 2})
        assert not result.HasField("error"), result
        process = group.process_of()
        replica, memory = group.replica(process), process.server.host.memory
        left = []
        for _ in range(2):
            await group.cluster.run(process, replica.flush)
            left.append(memory.sizes(MemoryPart.ROWS).get(group.tablet, 0))
        assert left[0] > 0 == left[1]

    with_group(work)
