"""Sessions of exactly-once writes are bound to the user who opened them, on every replica."""

from pathlib import Path

import pytest

from nyala.common.errors import Forbidden
from nyala.replica.member.client_sessions import Admitted, ClientSessions
from nyala.replica.member.session_header import NO_OWNER, SERVERS, Header, owner_of, unwrap, wrap
from tests.unit.replica.support.replica_support import scenario

GOLDEN = Path(__file__).parents[3] / "golden" / "replica"
CLIENT = b"a" * 16
ANN, BOB = owner_of("ann"), owner_of("bob")


def do(table, sequence, owner, stamp=5, first=0, result=b"ok"):
    header = Header(CLIENT, sequence, first, 600, 1, 0, 0, owner)
    verdict, saved = table.admit(header, stamp)
    if verdict is Admitted.RUN:
        table.keep(saved, result)
    return verdict


def test_operation_of_another_user_is_refused_and_changes_nothing():
    table = ClientSessions()
    assert do(table, 1, ANN) is Admitted.RUN
    before = table.dump()
    for sequence in (1, 2, 1 << 40):
        assert do(table, sequence, BOB, first=sequence) is Admitted.OTHER_OWNER
    assert table.dump() == before
    again = ClientSessions.load(before)
    assert again.dump() == before
    for owned in (table, again):
        assert do(owned, 1, BOB) is Admitted.OTHER_OWNER
        assert do(owned, 1, ANN) is Admitted.DUPLICATE
        assert do(owned, 1, NO_OWNER) is Admitted.DUPLICATE, "of a leader of an earlier release"


def test_session_recorded_without_owner_is_that_of_the_first_who_writes_in_it():
    table = ClientSessions.load((GOLDEN / "sessions-v2.bin").read_bytes())
    assert do(table, 1, ANN) is Admitted.DUPLICATE
    assert do(table, 1, BOB) is Admitted.OTHER_OWNER
    assert do(table, 1, ANN) is Admitted.DUPLICATE


def test_servers_take_over_a_session_under_an_id_that_a_user_could_compute():
    table = ClientSessions()
    assert do(table, 1, BOB, result=b"of bob") is Admitted.RUN
    assert do(table, 1, SERVERS) is Admitted.RUN
    assert do(table, 1, BOB) is Admitted.OTHER_OWNER
    assert do(table, 1, SERVERS) is Admitted.DUPLICATE
    assert (len(table), table.clients) == (1, 1)


def test_bytes_of_sessions_and_operations_with_owners_are_unchanged():
    table = ClientSessions()
    do(table, 1, ANN)
    assert table.dump() == (GOLDEN / "sessions-v3.bin").read_bytes()
    operation = wrap(b"payload", CLIENT, 7, 3, 600, 1 << 60, 5, ANN)
    assert operation == (GOLDEN / "operation-v4.bin").read_bytes()
    found, payload = unwrap(operation)
    assert (payload, found.owner, found.table_kib, found.since) == (b"payload", ANN, 5, 1 << 60)
    assert unwrap(wrap(b"payload", CLIENT, 7, 3, 600, 1 << 60, 5))[0].owner == NO_OWNER
    assert len({NO_OWNER, SERVERS, ANN, BOB, owner_of("")}) == 5


async def refused(fleet):
    for sequence in (1, 2):
        with pytest.raises(Forbidden, match="another user's client, so it was not executed"):
            await fleet.write(b"k 1", sequence=sequence, owner=BOB)


@scenario()
async def test_write_of_another_user_is_refused_after_failover_and_restart_too(fleet):
    """Abuse case 19: a forged client id."""
    first = await fleet.write(b"k 1", sequence=1, owner=ANN)
    await refused(fleet)
    fleet.processes[await fleet.leader()].kill()
    await refused(fleet)
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
    await refused(fleet)
    again = await fleet.write(b"k 1", sequence=1, owner=ANN)
    assert (again.duplicate, again.stamp) == (True, first.stamp)
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 1}] * 3


@scenario()
async def test_write_of_another_user_does_not_wait_for_the_same_one_in_flight(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])  # answers are lost
    mine = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, owner=ANN))
    theirs = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, owner=BOB))
    await fleet.pass_ms(50)
    fleet.network.heal()
    await fleet.until(lambda: mine and theirs, "both are answered")
    assert mine[0].result == b"1"
    assert isinstance(theirs[0], Forbidden)
