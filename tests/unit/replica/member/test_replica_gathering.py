"""Time at which entries are applied: by a leader at once, by its followers a moment later and together."""

from nyala.replica.member import applier
from nyala.replica.member.applier import DELAY_ENTRIES, DELAY_MS
from tests.unit.replica.support.replica_support import scenario

HEARTBEATS_MS = 250
"""Milliseconds after which a follower has received the commit index."""


@scenario()
async def test_followers_batch_entries_for_apply_and_leader_does_not(fleet):
    leader = await fleet.leader()
    await fleet.settled()
    for n in range(3):
        fleet.machine(n).groups.clear()
    for _ in range(3 * DELAY_ENTRIES):
        await fleet.write(b"k 1")
    assert fleet.machine(leader).groups == [1] * (3 * DELAY_ENTRIES)
    await fleet.settled()
    for n in ((leader + 1) % 3, (leader + 2) % 3):
        groups = fleet.machine(n).groups
        assert sum(groups) == 3 * DELAY_ENTRIES
        assert len(groups) <= DELAY_ENTRIES
        assert fleet.machine(n).sums == {"k": 3 * DELAY_ENTRIES}


@scenario()
async def test_single_entry_is_applied_everywhere_after_delay(fleet):
    await fleet.leader()
    await fleet.write(b"k 5")
    await fleet.pass_ms(HEARTBEATS_MS + DELAY_MS)
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 5}] * 3


def test_ticks_do_not_end_the_delay_of_followers(monkeypatch):
    """Each tick continues what waited for memory, and nothing else."""
    monkeypatch.setattr(applier, "DELAY_MS", 1000)

    @scenario()
    async def go(fleet):
        leader = await fleet.leader()
        await fleet.settled()
        for n in range(3):
            fleet.machine(n).groups.clear()
        for _ in range(DELAY_ENTRIES // 2):
            await fleet.write(b"k 1")
            await fleet.pass_ms(50)
        await fleet.settled()
        for n in ((leader + 1) % 3, (leader + 2) % 3):
            assert fleet.machine(n).groups == [DELAY_ENTRIES // 2]

    go()
