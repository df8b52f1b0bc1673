"""A follower whose disk has less than it acknowledged catches up, and counts again afterwards."""

import random

import pytest

from nyala.common.options import Options
from tests.unit.replica.support.replica_support import Fleet, scenario


class NothingSurvives(random.Random):
    """Random choices with which a power failure loses all unsynced data."""

    def choice(self, seq):
        return "none" if "none" in seq else super().choice(seq)


def level(fleet: Fleet, leader: int) -> bool:
    status = fleet.replica(leader).status()
    return all(p.match == status.last.index for p in status.peers)


async def write_with_two(fleet: Fleet, leader: int, third: int) -> None:
    """Two of three run, one of them with a lost tail: they accept writes."""
    fleet.processes[third].kill(power_cut=False)
    outcome = fleet.spawn(leader, fleet.call(leader, b"k 1", timeout_ms=60_000))
    await fleet.until(lambda: bool(outcome), "an answer", timeout_ms=60_500)
    assert hasattr(outcome[0], "stamp"), outcome


@scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0))
async def test_follower_with_damage_taken_for_torn_tail_catches_up(fleet):
    for _ in range(3):
        await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower, third = [n for n in range(3) if n != leader]
    await fleet.write(b"k 1")
    await fleet.until(lambda: level(fleet, leader), "all members acknowledge all entries")
    fleet.processes[follower].kill()
    files = fleet.processes[follower].disk.mount()
    path = "/data/wal/" + [n for n in files.list("/data/wal") if n.endswith(".wal")][-1]
    data = files.read(path)
    at = len(data.rstrip(b"\0")) - 1
    file = files.open_append(path, at)
    file.append([bytes([data[at] ^ 0x55])])
    file.sync(data_only=False)
    file.close()
    await fleet.boot(follower)
    await fleet.until(lambda: level(fleet, leader), "the follower has everything again")
    await write_with_two(fleet, leader, third)


@pytest.mark.parametrize("policy", ["interval", "never"])
def test_follower_with_lost_unsynced_tail_catches_up(policy):
    options = Options(
        wal_segment_mb=1, wal_sync=policy, wal_sync_interval_ms=5000, raft_quiesce_ms=0
    )

    @scenario(options=options)
    async def go(fleet):
        for _ in range(3):
            await fleet.write(b"k 1")
        await fleet.settled()
        await fleet.pass_ms(11_000)  # all of this is synced
        leader = await fleet.leader()
        follower, third = [n for n in range(3) if n != leader]
        for _ in range(5):
            await fleet.write(b"k 1")
        await fleet.settled()
        fleet.processes[follower].disk.rng = NothingSurvives(1)
        fleet.processes[follower].kill()
        await fleet.boot(follower)
        assert fleet.replica(follower).status().last < fleet.replica(leader).status().last
        await fleet.until(lambda: level(fleet, leader), "the follower has everything again")
        await write_with_two(fleet, leader, third)

    go()
