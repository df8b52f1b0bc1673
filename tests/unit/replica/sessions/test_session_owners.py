"""Sessions of exactly-once writes belong to a user and a client id, on every replica."""

from pathlib import Path

from nyala.replica.member import client_sessions
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


def test_owners_of_the_same_client_id_have_sessions_of_their_own():
    table = ClientSessions()
    assert do(table, 1, BOB, result=b"of bob") is Admitted.RUN, "before ann, under her id"
    for sequence in (1, 2):
        assert do(table, sequence, ANN) is Admitted.RUN, "nobody keeps her out"
    assert do(table, 1 << 40, BOB, first=1 << 40) is Admitted.RUN
    again = ClientSessions.load(table.dump())
    assert again.dump() == table.dump()
    for owned in (table, again):
        assert owned.clients == 2
        for sequence in (1, 2):
            verdict, saved = owned.admit(Header(CLIENT, sequence, 0, 600, 1, 0, 0, ANN), 5)
            assert saved is not None
            assert (verdict, saved.result) == (Admitted.DUPLICATE, b"ok")
        assert do(owned, 2, BOB) is Admitted.EXPIRED, "he has acknowledged it, and she has not"
        assert do(owned, 3, ANN) is Admitted.RUN
        assert do(owned, 1, SERVERS) is Admitted.RUN, "orders, whose ids can be computed"
        assert do(owned, 1, SERVERS) is Admitted.DUPLICATE


def test_operation_without_owner_is_found_in_the_session_of_its_client():
    table = ClientSessions()
    do(table, 1, ANN)
    assert do(table, 1, NO_OWNER) is Admitted.DUPLICATE, "of a leader of an earlier release"
    assert do(table, 2, NO_OWNER) is Admitted.RUN
    assert do(table, 2, ANN) is Admitted.DUPLICATE


def test_operation_of_a_session_without_owner_is_not_executed_again_for_any_owner():
    table = ClientSessions.load((GOLDEN / "sessions-v2.bin").read_bytes())
    clients = table.clients
    for owner in (ANN, BOB, ANN):
        assert do(table, 1, owner) is Admitted.DUPLICATE
    assert do(table, 1 << 40, BOB, first=1 << 40) is Admitted.RUN
    assert table.clients == clients + 1, "the session without owner stays as it is"
    assert do(ClientSessions.load(table.dump()), 1, ANN) is Admitted.DUPLICATE


def test_operation_of_a_session_without_owner_that_was_forgotten_is_not_executed_again(monkeypatch):
    table = ClientSessions()
    sent = Header(CLIENT, 1, 1, 600, 1, 50, 0, NO_OWNER)
    assert table.admit(sent, 60)[0] is Admitted.RUN
    assert table.admit(Header(CLIENT, 2, 1, 600, 1, 61, 0, ANN), 70)[0] is Admitted.RUN
    monkeypatch.setattr(client_sessions, "MAX_CLIENTS", 2)
    other = Header(b"b" * 16, 1, 1, 600, 1, 71, 0, BOB)
    assert table.admit(other, 80)[0] is Admitted.RUN
    retried = Header(CLIENT, 1, 1, 600, 1, 50, 0, ANN)
    for kept in (table, ClientSessions.load(table.dump())):
        assert kept.admit(retried, 90)[0] is Admitted.FORGOTTEN
        assert kept.admit(Header(CLIENT, 3, 1, 600, 1, 70, 0, ANN), 91)[0] is Admitted.RUN


def test_bytes_of_sessions_and_operations_with_owners_are_unchanged():
    table = ClientSessions()
    do(table, 1, ANN)
    assert table.dump() == (GOLDEN / "sessions-v3.bin").read_bytes()
    do(table, 1, BOB, result=b"of bob")
    assert table.dump() == (GOLDEN / "sessions-v4.bin").read_bytes()
    operation = wrap(b"payload", CLIENT, 7, 3, 600, 1 << 60, 5, ANN)
    assert operation == (GOLDEN / "operation-v4.bin").read_bytes()
    found, payload = unwrap(operation)
    assert (payload, found.owner, found.table_kib, found.since) == (b"payload", ANN, 5, 1 << 60)
    assert unwrap(wrap(b"payload", CLIENT, 7, 3, 600, 1 << 60, 5))[0].owner == NO_OWNER
    assert len({NO_OWNER, SERVERS, ANN, BOB, owner_of("")}) == 5


@scenario()
async def test_write_under_the_client_id_of_another_user_touches_no_session_of_his(fleet):
    """Abuse case 19: a forged client id, before its owner writes, and after failover and restart."""

    async def check():
        for owner, stamp in stamps.items():
            again = await fleet.write(b"k 1", sequence=1, owner=owner)
            assert (again.duplicate, again.stamp) == (True, stamp)

    forged = await fleet.write(b"k 1", sequence=1, owner=BOB)
    first = await fleet.write(b"k 1", sequence=1, owner=ANN)
    stamps = {BOB: forged.stamp, ANN: first.stamp}
    assert not first.duplicate
    await check()
    fleet.processes[await fleet.leader()].kill()
    await check()
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
    await check()
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 2}] * 3


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
    assert [mine[0].duplicate, theirs[0].duplicate] == [False, False]
    assert sorted((mine[0].result, theirs[0].result)) == [b"1", b"2"]
