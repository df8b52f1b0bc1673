"""Memory budget of a process: followers accept no more than fits; caches of idle groups are evicted first."""

import random

import pytest
from msgspec.structs import replace

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.raft.messages import AppendEntries, PeerBatch
from nyala.raft.status import Role
from nyala.replica.memory import MemoryPart, MemoryTracker
from tests.unit.replica.support.memory_support import burst, flusher
from tests.unit.replica.support.replica_support import GROUP, record_batches, scenario

KIB = 1 << 10
BUDGET = 64 * KIB
STALLED_US = 3_600_000_000
OPTIONS = Options(
    wal_segment_mb=1,
    memory_budget_bytes=BUDGET,
    flush_bytes=16 * KIB,
    raft_append_bytes=4 * KIB,
    raft_inflight_bytes=8 * KIB,
    apply_group_bytes=4 * KIB,
    raft_cache_total_bytes=16 * KIB,
)
SLACK = 24 * KIB
"""Bytes in flight when the budget is reached: one message and one applied batch of each group."""
PADDED = b"k 1" + b" " * 1000


def memory_of(fleet, number):
    return fleet.host(number).memory


def watch(fleet, limits):
    """Check the limit of each server after each step of the loop; return the maxima."""
    most = dict.fromkeys(limits, 0)

    def look():
        for number, limit in limits.items():
            if number in fleet.alive():
                used = memory_of(fleet, number).used_bytes
                most[number] = max(most[number], used)
                assert used <= limit, memory_of(fleet, number).over_budget_reason

    fleet.loop.after_step = look
    return most


@scenario(options=OPTIONS)
async def test_follower_with_stalled_flushes_stays_within_budget_and_catches_up(fleet):
    leader = await fleet.leader()
    slow = (leader + 1) % 3
    fleet.processes[slow].delays.compute_us = STALLED_US
    most = watch(fleet, {slow: BUDGET + SLACK})
    for n in range(1, 301):
        await fleet.write(PADDED, sequence=n, first=n)
    assert most[slow] > BUDGET, "the follower exceeded its budget"
    term = fleet.replica(leader).status().term
    received: list[PeerBatch] = []
    record_batches(fleet.processes[leader], received)
    await fleet.pass_ms(5_000)
    status = fleet.replica(slow).status()
    assert (status.role, status.term) == (Role.FOLLOWER, term), (
        "the follower stays in its leader's term"
    )
    assert "memory_budget_bytes" in status.error
    assert fleet.replica(leader).status().error == ""
    assert status.last.index < fleet.replica(leader).status().commit - 100, (
        "the follower accepted no further entries"
    )
    (peer,) = [
        p
        for p in fleet.replica(leader).status().peers
        if p.uuid == status.config.members[slow].uuid
    ]
    assert peer.out_of_memory
    sent = [
        m for b in received for _, m in b.messages
        if isinstance(m, AppendEntries) and m.to == peer.uuid and m.entries
    ]  # fmt: skip
    assert len(sent) < 3, "the leader does not send entries that are refused"
    fleet.processes[slow].kill()  # a flush that hangs for an hour
    fleet.processes[slow].delays.compute_us = 500
    await fleet.restart(slow)
    await fleet.settled()
    assert fleet.machine(slow).sums == {"k": 300}
    await fleet.until(
        lambda: not fleet.replica(slow).status().error, "memory is below the budget again"
    )


@scenario(options=OPTIONS)
async def test_follower_over_budget_accepts_entries_after_flush(fleet):
    leader = await fleet.leader()
    slow = (leader + 1) % 3
    fleet.processes[slow].delays.compute_us = 10_000_000
    watch(fleet, {slow: BUDGET + SLACK})
    for n in range(1, 201):
        await fleet.write(PADDED, sequence=n, first=n)
    fleet.processes[slow].delays.compute_us = 500
    await fleet.settled()
    assert fleet.machine(slow).sums == {"k": 200}


@scenario(options=OPTIONS)
async def test_follower_applies_nothing_without_memory(fleet):
    leader = await fleet.leader()
    slow = (leader + 1) % 3
    delays, machine = fleet.processes[slow].delays, fleet.machine(slow)
    machine.growth = 10
    delays.apply_us, delays.compute_us = 30_000_000, STALLED_US
    for n in range(1, 31):
        await fleet.write(PADDED, sequence=n, first=n)
    delays.apply_us = 50
    watch(fleet, {slow: 2 * BUDGET})  # 30 KiB of entries, which would be 300 of rows
    await fleet.pass_ms(200_000)
    assert memory_of(fleet, slow).of(MemoryPart.ROWS) > BUDGET // 2, (
        "the follower applied entries up to the budget"
    )
    assert machine.runs < 30


@scenario(options=OPTIONS)
async def test_follower_resumes_applying_after_flush(fleet):
    leader = await fleet.leader()
    slow = (leader + 1) % 3
    delays, machine = fleet.processes[slow].delays, fleet.machine(slow)
    machine.growth = 10
    delays.apply_us, delays.compute_us = 5_000_000, 2_000_000
    for n in range(1, 31):
        await fleet.write(PADDED, sequence=n, first=n)
    delays.apply_us = 50
    await fleet.until(
        lambda: machine.sums == {"k": 30}, "all entries are applied without further writes", 100_000
    )


@scenario(groups=(GROUP, TabletId("b" * 32)), options=OPTIONS)
async def test_memory_of_deleted_replica_is_not_counted(fleet):
    for group in (GROUP, TabletId("b" * 32)):
        await fleet.write(PADDED, group=group)
        await fleet.settled(group)
        await fleet.as_(0, fleet.host(0).delete_replica(group))
    memory = memory_of(fleet, 0)
    assert (memory.used_bytes, [memory.of(p) for p in MemoryPart]) == (0, [0] * len(MemoryPart))


def test_writes_in_flight_are_bounded_over_all_tablets():
    memory = MemoryTracker(
        replace(
            OPTIONS, write_queue_total_bytes=10 * KIB, write_max_bytes=KIB, catalog_batch_bytes=KIB
        )
    )
    with memory.hold(MemoryPart.WRITES, 6 * KIB):
        memory.check(4 * KIB)
        with pytest.raises(Throttled, match="write_queue_total_bytes"):
            memory.check(5 * KIB)
    memory.check(50 * KIB)  # a single one may have any size
    assert memory.of(MemoryPart.WRITES) == 0


async def tried(fleet, number, sequence):
    """Write; return the error of a write without memory."""
    try:
        await fleet.as_(number, fleet.call(number, PADDED, sequence=sequence, first=sequence))
    except Throttled as err:
        return err
    return None


@scenario(options=OPTIONS)
async def test_leader_over_budget_refuses_writes_until_below_it(fleet):
    leader = await fleet.leader()
    for process in fleet.processes:
        process.delays.compute_us = 8_000_000
    done = 0
    while (answer := await tried(fleet, leader, done + 1)) is None:
        done += 1
    assert "memory_budget_bytes" in answer.message
    assert int(answer.details["retry_after_ms"]) > 0
    assert done < 300
    assert memory_of(fleet, leader).used_bytes <= BUDGET + SLACK
    assert (await fleet.as_(leader, fleet.replica(leader).read_point(None, 1000))) > 0, (
        "reads continue"
    )
    for process in fleet.processes:
        process.delays.compute_us = 500
    await fleet.until(lambda: not memory_of(fleet, leader).full, "flushed")
    outcome = await fleet.write(PADDED, sequence=done + 1)
    assert outcome.result == b"%d" % (done + 1)


@scenario(options=OPTIONS)
async def test_leader_at_the_budget_answers_the_writes_that_it_has_taken(fleet):
    """A follower stops applying at the budget; clients wait for a leader, which has a quarter more."""
    leader = await fleet.leader()
    await fleet.settled()
    fleet.processes[leader].delays.compute_us = STALLED_US
    fleet.machine(leader).growth = 5
    answers = [
        fleet.spawn(leader, fleet.call(leader, PADDED, sequence=n, timeout_ms=20_000))
        for n in range(1, 17)
    ]
    await fleet.until(lambda: all(answers), "all are answered while no flush ends", 10_000)
    assert [a[0].result for a in answers] == [b"%d" % n for n in range(1, 17)]
    assert BUDGET < memory_of(fleet, leader).of(MemoryPart.ROWS) <= BUDGET * 1.5


GROUPS = [TabletId(c * 32) for c in "abcdef01"]


@scenario(groups=GROUPS, options=replace(OPTIONS, memory_budget_bytes=1024 * KIB))
async def test_cached_entries_are_bounded_over_groups_and_idle_groups_evicted_first(fleet):
    for _ in range(4):
        for group in GROUPS:
            await fleet.write(PADDED, group=group)
    for _ in range(16):
        await fleet.write(PADDED, group=GROUPS[0])
    await fleet.pass_ms(200)
    for number in range(3):
        memory = memory_of(fleet, number)
        kept = memory.sizes(MemoryPart.ENTRIES)
        assert memory.of(MemoryPart.ENTRIES) == sum(kept.values()) <= OPTIONS.raft_cache_total_bytes
        assert kept[GROUPS[0]] > 5 * KIB, "the active group keeps its entries"
        assert kept[GROUPS[-1]] < kept[GROUPS[0]] // 4


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_random_load_stays_within_budget_and_all_entries_are_applied(seed):
    rng = random.Random(seed)

    @scenario(groups=GROUPS[:5], options=OPTIONS, max_time_s=1200)
    async def steps(fleet):
        for number in range(3):
            await fleet.as_(number, flusher(fleet, number, OPTIONS))
        slack = (
            SLACK + 5 * 3 * 8 * KIB
        )  # of each group: applied entries, and those in flight at a leader
        most = watch(fleet, dict.fromkeys(range(3), BUDGET + slack))
        expected = dict.fromkeys(GROUPS[:5], 0)
        clients = {(g, c): 0 for g in expected for c in range(4)}
        for _ in range(40):
            number = rng.randrange(3)
            delays = fleet.processes[number].delays
            delays.compute_us = rng.choice([500, 500, 2_000_000, 10_000_000])
            delays.apply_us = rng.choice([50, 50, 100_000])
            if rng.random() < 0.15:
                other = rng.randrange(3)
                fleet.network.cut([f"s{number}"], [f"s{other}"])
            elif rng.random() < 0.4:
                fleet.network.heal()
            await burst(fleet, rng, clients, expected)
        fleet.network.heal()
        for process in fleet.processes:
            process.delays.compute_us, process.delays.apply_us = 500, 50
        await fleet.pass_ms(60_000)  # pending work keeps its slow delays
        for group in expected:
            await fleet.settled(group)
            for number in range(3):
                assert fleet.machine(number, group).sums.get("k", 0) == expected[group]
        assert max(most.values()) > BUDGET // 2, "the load reaches half of the budget"
        for number in range(3):
            exact = sum(fleet.replica(number, g).node.core.log.memory_bytes for g in expected)
            assert memory_of(fleet, number).of(MemoryPart.ENTRIES) == exact
            rows = sum(fleet.machine(number, g).unflushed_bytes() for g in expected)
            assert memory_of(fleet, number).of(MemoryPart.ROWS) == rows

    steps()


def test_memory_metrics_list_every_component():
    @scenario(options=OPTIONS)
    async def steps(fleet):
        await fleet.write(PADDED)
        await fleet.settled()
        registry = fleet.processes[0].server.metrics.registry
        shown = {
            part: registry.get_sample_value("nyala_memory_part_bytes", {"part": part.value})
            for part in MemoryPart
        }
        assert None not in shown.values()
        assert sum(shown.values()) == registry.get_sample_value("nyala_memory_used_bytes")
        assert registry.get_sample_value("nyala_memory_budget_bytes") == BUDGET
        assert shown[MemoryPart.ROWS] > 0
        assert shown[MemoryPart.ENTRIES] > 0
        assert shown[MemoryPart.SESSIONS] > 0
        assert fleet.replica(0, GROUP).status().error == ""

    steps()
