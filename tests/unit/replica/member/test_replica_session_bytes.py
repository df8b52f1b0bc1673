"""Memory of a tablet's client sessions is bounded; the bound is in each entry and refuses no write."""

import random

import pytest
from msgspec.structs import replace

from nyala.common.hybrid_time import from_micros
from nyala.common.ids import TabletId
from nyala.common.options import KIB, MIB, Options
from nyala.replica.member.client_sessions import (
    CLIENT_BYTES,
    RESULT_BYTES,
    Admitted,
    ClientSessions,
)
from nyala.replica.member.session_header import Header
from nyala.replica.memory import MIN_TABLE_BYTES, SESSIONS_SHARE, MemoryPart, MemoryTracker
from tests.unit.replica.support.replica_support import scenario

SECOND = from_micros(1_000_000)
TABLE_KIB = 64
KNOWN = TABLE_KIB * KIB // 2 // (CLIENT_BYTES + RESULT_BYTES)
"""Number of clients with one result each that fit into the table."""


def client(number):
    return number.to_bytes(16)


def header(of, sequence=1, first=1, since=0):
    return Header(client(of), sequence, first, 600, 1, since, TABLE_KIB)


def do(table, h, stamp, result=b"done"):
    verdict, saved = table.admit(h, stamp)
    if verdict is Admitted.RUN:
        assert saved is not None
        table.keep(saved, result)
    return verdict


def test_least_recent_client_session_is_evicted_and_its_retry_refused():
    table = ClientSessions()
    for n in range(1, 2 * KNOWN):
        assert do(table, header(n, since=n * SECOND - 1), n * SECOND) is Admitted.RUN
    assert table.clients == KNOWN
    now = 2 * KNOWN * SECOND
    assert do(table, header(1, since=SECOND - 1), now) is Admitted.FORGOTTEN
    assert do(table, header(2 * KNOWN - 1), now) is Admitted.DUPLICATE
    assert do(table, header(1, since=now), now + 1) is Admitted.RUN, (
        "a new operation is not refused"
    )


def test_client_cannot_evict_other_clients():
    table = ClientSessions()
    for n in range(KNOWN // 2):
        do(table, header(n, since=1), SECOND + n)
    for sequence in range(1, 500):
        assert do(table, header(999, sequence), 2 * SECOND + sequence) is Admitted.RUN
    assert table.memory_bytes <= TABLE_KIB * KIB
    assert do(table, header(KNOWN // 2 - 1), 9 * SECOND) is Admitted.DUPLICATE
    assert do(table, header(999, 499), 9 * SECOND) is Admitted.DUPLICATE
    assert do(table, header(999, 1), 9 * SECOND) is Admitted.EXPIRED


@pytest.mark.parametrize("seed", range(30))
def test_session_bound_holds_without_double_execution_or_group_dependence(seed):
    """One of two tables adds each result immediately, the other those of a group after all of it."""
    rng = random.Random(seed)
    one, other, now = ClientSessions(), ClientSessions(), 1000 * SECOND
    sent: list[Header] = []
    sequences: dict[int, int] = {}
    ran: set[tuple[bytes, int]] = set()
    for _ in range(100):
        kept = []
        for _ in range(rng.randrange(1, 12)):
            now += rng.randrange(1, SECOND)
            if sent and rng.random() < 0.3:
                h = rng.choice(sent)
            else:
                of = rng.randrange(10) if rng.random() < 0.5 else rng.randrange(500)
                sequence = sequences[of] = sequences.get(of, 0) + 1
                first = rng.choice([1, sequence])
                h = header(of, sequence, first, rng.choice([now, now - 5 * SECOND, 1]))
                sent.append(h)
            result = bytes(rng.choice([0, 10, 3000]))
            verdict, saved = one.admit(h, now)
            of_other, again = other.admit(h, now)
            assert of_other is verdict
            if verdict is Admitted.RUN:
                assert again is not None
                assert (h.client_id, h.sequence) not in ran, "the operation is executed twice"
                ran.add((h.client_id, h.sequence))
                assert saved is not None
                one.keep(saved, result)
                kept.append((again, result))
            assert one.memory_bytes <= TABLE_KIB * KIB
        for again, result in kept:
            other.keep(again, result)
        assert other.memory_bytes <= TABLE_KIB * KIB
        if rng.random() < 0.1:
            one = ClientSessions.load(one.dump())
    assert one.forgotten == other.forgotten > 0
    assert one.clients == other.clients


def test_session_budget_is_shared_among_tablets_of_a_table():
    memory = MemoryTracker(Options(memory_budget_bytes=64 * MIB, client_results_bytes=4 * MIB))
    share = 64 * MIB // SESSIONS_SHARE
    memory.set_size(MemoryPart.SESSIONS, TabletId("a"), share)
    assert memory.table_bytes() == 4 * MIB
    over = [memory.sessions_excess_bytes]
    memory.set_size(MemoryPart.SESSIONS, TabletId("b"), 1)
    assert memory.table_bytes() == 4 * MIB
    memory.set_size(MemoryPart.SESSIONS, TabletId("c"), 1)
    assert [*over, memory.sessions_excess_bytes] == [0, 2]
    assert memory.table_bytes() == share // 3
    for n in range(500):
        memory.set_size(MemoryPart.SESSIONS, TabletId(f"{n}"), 1)
    assert memory.table_bytes() == MIN_TABLE_BYTES


SMALL = Options(
    wal_segment_mb=1,
    memory_budget_bytes=64 * KIB,
    flush_bytes=16 * KIB,
    raft_append_bytes=4 * KIB,
    raft_cache_total_bytes=8 * KIB,
)


@scenario(options=SMALL)
async def test_sessions_over_budget_do_not_block_writes_permanently(fleet):
    for number in range(3):
        fleet.host(number).memory.set_size(MemoryPart.SESSIONS, TabletId("idle"), 100 * KIB)
    for n in range(1, 201):
        await fleet.write(b"k 1", client=client(n), sequence=1, since=None)
    await fleet.settled()
    assert fleet.machine(0).sums == {"k": 200}
    for number in range(3):
        memory = fleet.host(number).memory
        assert 100 * KIB < memory.of(MemoryPart.SESSIONS) <= 100 * KIB + MIN_TABLE_BYTES


@scenario(options=replace(SMALL, memory_budget_bytes=1 * MIB, client_results_bytes=64 * KIB))
async def test_session_memory_stays_within_option_and_excess_is_reported(
    fleet,
):
    for n in range(1, 201):
        await fleet.write(b"k 1", client=client(n), sequence=1, since=None)
    await fleet.settled()
    host = fleet.host(0)
    assert host.memory.of(MemoryPart.SESSIONS) <= 64 * KIB
    assert len({fleet.replica(n).member.applier.sessions.clients for n in range(3)}) == 1
    assert host.problems() == []
    host.memory.set_size(MemoryPart.SESSIONS, TabletId("idle"), MIB // 4)
    (problem,) = host.problems()
    assert "client_results_bytes" in problem
    host.memory.forget(TabletId("idle"))
    assert host.problems() == []
