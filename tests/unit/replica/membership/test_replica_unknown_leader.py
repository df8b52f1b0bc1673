"""A replica whose configuration does not have the present leader yet: it answers, and catches up."""

from dataclasses import replace

from nyala.raft.membership import initial
from tests.unit.replica.support.replica_support import GROUP, scenario


@scenario(servers=5, start=False)
async def test_leader_outside_local_configuration_is_answered(fleet):
    for number in range(5):
        await fleet.boot(number)
    members = fleet.configuration(range(5)).members
    late = replace(members[4], voter=False)
    now = initial([*members[:2], late])
    before = initial([*members[2:4], late])
    for number, config in ((0, now), (1, now), (4, before)):
        await fleet.create(number, GROUP, config)
    for _ in range(3):
        await fleet.write(b"k 1")
    await fleet.until(lambda: fleet.machine(4).sums == {"k": 3}, "the late one is caught up")
    leader = fleet.replica(await fleet.leader(among=[0, 1]))
    seen = {p.uuid: p.match for p in leader.status().peers}
    assert seen[late.uuid] == leader.status().last.index
