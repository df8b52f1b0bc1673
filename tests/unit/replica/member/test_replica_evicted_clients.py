"""Clients that a tablet has evicted: none of their writes is executed twice, even if sent again late."""

import random

import pytest

from nyala.common.errors import InvalidArgument, SessionExpired
from nyala.common.hybrid_time import MAX_HYBRID_TIME, from_micros
from nyala.replica.member import client_sessions
from nyala.replica.member.client_sessions import Admitted, ClientSessions
from nyala.replica.member.pending_writes import FORGOTTEN
from nyala.replica.member.session_header import Header
from tests.unit.replica.support.replica_support import scenario

SECOND = from_micros(1_000_000)
LIMIT = 4


@pytest.fixture(autouse=True)
def _few_clients(monkeypatch):
    monkeypatch.setattr(client_sessions, "MAX_CLIENTS", LIMIT)
    monkeypatch.setattr(client_sessions, "MAX_RESULTS", 3 * LIMIT)


def client(number):
    return number.to_bytes(16)


class Operation:
    """One operation of a client, as it is sent each time."""

    def __init__(self, of, sequence, first, since):
        self.key = (of, sequence)
        self.header = Header(client(of), sequence, first, 10, 1, since)
        self.tries = self.runs = 0


@pytest.mark.parametrize("seed", range(60))
def test_forgotten_client_session_causes_no_double_execution(seed):
    """Clients start and end, start with their known time, and repeat any request at any time."""
    rng = random.Random(seed)
    table, now, healed, refused = ClientSessions(), 1000 * SECOND, 0, 0
    sent: list[Operation] = []
    last: dict[int, int] = {}
    for _ in range(400):
        now += rng.randrange(1, 3 * SECOND)
        if rng.random() < 0.05:
            table = ClientSessions.load(table.dump())
        if sent and rng.random() < 0.4:
            operation = rng.choice(sent)
        else:
            of = rng.randrange(3 * LIMIT) if rng.random() < 0.7 else rng.randrange(10**6)
            sequence = last[of] = last.get(of, 0) + 1
            knows = rng.choice([0, now - 900 * SECOND, now - 2 * SECOND, now - 1, now + 5 * SECOND])
            operation = Operation(of, sequence, rng.choice([1, sequence]), knows)
            sent.append(operation)
        verdict, saved = table.admit(operation.header, now)
        operation.tries += 1
        if verdict is Admitted.RUN:
            assert saved is not None
            table.keep(saved, b"done")
            operation.runs += 1
        assert operation.runs < 2, operation.key
        if verdict is Admitted.FORGOTTEN:
            refused += 1
            if operation.tries == 1:  # an operation sent once and refused was never executed
                h = operation.header
                operation.header = Header(
                    h.client_id, h.sequence, h.first_outstanding, 10, 1, table.forgotten + 1
                )
                now += 1
                assert table.admit(operation.header, now)[0] is Admitted.RUN
                operation.runs += 1
                healed += 1
    assert table.clients <= LIMIT
    assert refused > healed > 0


def test_write_first_sent_after_session_loss_is_executed():
    table = ClientSessions()
    for number in range(LIMIT + 2):
        stamp = (number + 1) * SECOND
        assert table.admit(Header(client(number), 1, 1, 10, 1, stamp - 1), stamp)[0] is Admitted.RUN
    assert table.forgotten == 2 * SECOND
    for number in range(2):  # both were evicted, and were executed
        since = (number + 1) * SECOND - 1
        again = Header(client(number), 1, 1, 10, 1, since)
        assert table.admit(again, 99 * SECOND) == (Admitted.FORGOTTEN, None)
    assert table.clients == LIMIT, "a refused client evicts no other"
    new = Header(client(77), 1, 1, 10, 1, 2 * SECOND + 1)
    assert table.admit(new, 99 * SECOND)[0] is Admitted.RUN


def test_client_of_older_release_without_first_sent_time_is_treated_as_before():
    table = ClientSessions()
    for number in range(LIMIT + 1):
        assert table.admit(Header(client(number), 1, 1, 10, 1), number + 1)[0] is Admitted.RUN
    assert table.forgotten == 0
    assert table.admit(Header(client(99), 1, 1, 10, 1, 0), 100)[0] is Admitted.RUN


@scenario(servers=1)
async def test_late_retry_of_forgotten_client_is_refused_with_time_bound(fleet):
    leader = await fleet.leader()
    clock = fleet.processes[leader].server.clock
    since = clock.peek()
    first = await fleet.write(b"k 1", client=client(1), sequence=1, since=since)
    for number in range(2, LIMIT + 3):
        await fleet.write(b"k 1", client=client(number), sequence=1, since=clock.peek())
    for sequence in (
        1,
        2,
    ):  # the one that was executed, and one that its client may have sent beside it
        with pytest.raises(SessionExpired) as caught:
            await fleet.write(b"k 1", client=client(1), sequence=sequence, since=since)
        assert caught.value.details["reason"] == FORGOTTEN
        assert int(caught.value.details["forgotten_until"]) >= first.stamp
    assert fleet.machine(leader).runs == LIMIT + 2
    fleet.processes[leader].kill()
    await fleet.restart(leader)
    await fleet.leader()
    with pytest.raises(SessionExpired):
        await fleet.write(b"k 1", client=client(1), sequence=1, since=since)
    until = int(caught.value.details["forgotten_until"])
    outcome = await fleet.write(b"k 1", client=client(1), sequence=3, since=until + 1)
    assert not outcome.duplicate
    with pytest.raises(InvalidArgument, match="hybrid time"):
        await fleet.write(b"k 1", client=client(9), sequence=1, since=1 << 63)


@scenario(servers=1)
async def test_first_sent_time_far_in_the_future_is_refused(fleet):
    """After an eviction of this client, no new client could write to the tablet until that time."""
    leader = await fleet.leader()
    clock = fleet.processes[leader].server.clock
    for since in (MAX_HYBRID_TIME, clock.peek() + from_micros(clock.limit_us + 1_000_000)):
        with pytest.raises(InvalidArgument, match="since") as refused:
            await fleet.write(b"k 1", client=client(1), sequence=1, since=since)
    latest = int(refused.value.details["latest_since"])
    await fleet.write(b"k 0", client=client(2), sequence=1, since=latest)
    ahead = clock.peek() + from_micros(clock.limit_us - 1_000_000)
    await fleet.write(b"k 1", client=client(1), sequence=1, since=ahead)
    assert fleet.machine(leader).runs == 2
