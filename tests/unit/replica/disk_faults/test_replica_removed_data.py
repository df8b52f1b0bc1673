"""Data of a replica or a copy are removed in lane COMPUTE: the log, in lane DISK, does not wait for it."""

import pytest

from nyala.env.tasks import Lane
from nyala.replica.copy.protocol import CopyStage
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.replica.support.copy_steps import fill, flush
from tests.unit.replica.support.copy_support import LIMITED
from tests.unit.replica.support.copy_support import scenario as copy_scenario
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of


def removals(fleet, number: int) -> list[tuple[Lane, str]]:
    """Return a list to which each removal of a directory that exists will add its lane and the directory."""
    env = fleet.processes[number].env
    run, remove_tree = env.tasks.run, env.files.remove_tree
    found: list[tuple[Lane, str]] = []
    lanes: list[Lane] = []

    async def noted_run(lane, fn, *args, **more):
        def noted(*given, **named):
            lanes.append(lane)
            try:
                return fn(*given, **named)
            finally:
                lanes.pop()

        return await run(lane, noted, *args, **more)

    def noted_remove(path):
        if env.files.exists(path):
            found.append((lanes[-1], path))
        remove_tree(path)

    env.tasks.run, env.files.remove_tree = noted_run, noted_remove
    return found


@pytest.mark.parametrize("for_good", [False, True])
def test_data_of_deleted_replica_are_removed_outside_the_lane_of_the_log(for_good):
    @scenario()
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        found, host = removals(fleet, 0), fleet.host(0)
        await fleet.as_(0, host.delete_for_good(GROUP) if for_good else host.delete_replica(GROUP))
        assert found == [(Lane.COMPUTE, f"/data/data/{GROUP}")]

    steps()


@copy_scenario(options=LIMITED)
async def test_data_of_copies_are_removed_outside_the_lane_of_the_log(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    found = removals(fleet, 3)
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    request = pb.CancelCopyRequest(destination_uuid=uuid_of(3), cluster_id="one", tablet_id=GROUP)
    await fleet.ask(3, methods.CANCEL_COPY, request)
    assert fleet.stage(3) is CopyStage.CANCELLED
    assert found == [(Lane.COMPUTE, f"/data/copy/{GROUP}")]
