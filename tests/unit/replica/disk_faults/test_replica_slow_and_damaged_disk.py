"""A slow disk delays acknowledgements only; damage without attribution fails all replicas it may concern."""

from nyala.common.ids import TabletId
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import GROUP, scenario

OTHER = TabletId("b" * 32)


@scenario()
async def test_followers_waiting_for_disk_answer_heartbeats(fleet):
    leader = await fleet.leader()
    term = fleet.replica(leader).status().term
    for n in range(3):
        if n != leader:
            fleet.processes[n].delays.disk_us = 300_000_000
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=60_000))
    await fleet.pass_ms(5_000)
    assert answer == []
    assert fleet.replica(leader).is_leader
    assert fleet.replica(leader).status().term == term


@scenario(groups=(GROUP, OTHER))
async def test_replica_with_possibly_lost_records_does_not_start_empty(fleet):
    await fleet.write(b"k 1")
    for n in range(1, 4):
        await fleet.write(b"k 1", group=OTHER, sequence=n)
    await fleet.settled()
    await fleet.settled(OTHER)
    await fleet.pass_ms(1000)
    await fleet.write(b"k 1", group=OTHER, sequence=4)
    await fleet.settled(OTHER)
    process = fleet.processes[0]
    process.kill(power_cut=True)
    for path in [p for p in _segments(process) if p.startswith("/data/wal/")]:
        content = bytes(process.disk.names.get(path).content)
        at = content.find(bytes.fromhex(GROUP))
        while at >= 0:
            process.disk.flip_bit(path, at)
            at = content.find(bytes.fromhex(GROUP), at + 1)
    await fleet.restart(0)
    assert [d.certain for d in fleet.host(0).wal.damage].count(False)
    assert fleet.replica(0).state is State.FAILED
    assert "damaged" in fleet.replica(0).status().error


def _segments(process):
    names = process.disk.names.seen
    return sorted(f"{d}/{n}" for d in names for n in names[d])
