"""Messages of servers that are no members change nothing; those of members not known yet count later."""

from dataclasses import replace

import pytest

from nyala.common.errors import Unavailable
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Configuration, initial
from nyala.raft.messages import AppendEntries, PeerBatch, RequestVote
from nyala.replica.status import State
from tests.unit.replica.support.member_support import change, remove
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

TERM = (1 << 63) - 1
STRANGER = ServerUuid("f" * 32)


def messages(sender, to):
    common = {"sender": sender, "to": to, "term": TERM}
    last = OpId(TERM - 1, TERM - 1)
    return (
        RequestVote(last=last, override=True, **common),
        RequestVote(last=last, pre=True, **common),
        AppendEntries(round=1, **common),
    )


def attack(fleet, number, sender):
    """Send each message of a server to another one; return how many were refused for their sender."""
    to, before = uuid_of(number), fleet.refusals(number, "sender")
    for message in messages(sender, to):
        hlc = fleet.host(number).time
        fleet.deliver(number, PeerBatch(sender, to, hlc, ((GROUP, message),)))
    return fleet.refusals(number, "sender") - before


class KnownMembers:
    """The masters' answer: a configuration, none, or no answer."""

    def __init__(self):
        self.answer, self.asked = None, 0

    async def __call__(self, group, sender):
        assert group == GROUP
        assert sender
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


KNOWN = KnownMembers()


def masters():
    """Return the masters' answers, new for each test."""
    KNOWN.answer, KNOWN.asked = None, 0
    return KNOWN


@scenario(members=masters)
async def test_outsider_raises_no_term(fleet):
    leader = await fleet.leader()
    terms = [fleet.replica(n).status().term for n in range(3)]
    for number in range(3):
        assert attack(fleet, number, STRANGER) == 3
    await fleet.pass_ms(5_000)
    assert [fleet.replica(n).status().term for n in range(3)] == terms
    assert await fleet.leader() == leader
    assert 0 < KNOWN.asked <= 3 * 11, "each server asks at most twice a second"


@scenario(members=masters)
async def test_removed_member_raises_no_term(fleet):
    leader = await fleet.leader()
    removed = (leader + 1) % 3
    before = fleet.replica(leader).status().config
    await change(fleet, remove(removed), expected=before.id)
    stay = [n for n in range(3) if n != removed]
    await fleet.until(
        lambda: all(fleet.replica(n).node.committed_config.id > before.id for n in stay), "removed"
    )
    terms = {n: fleet.replica(n).status().term for n in stay}
    KNOWN.answer = before  # of masters that do not know of the change yet
    for number in terms:
        assert attack(fleet, number, uuid_of(removed)) == 3
        await fleet.pass_ms(1_000)
        assert attack(fleet, number, uuid_of(removed)) == 3, (
            "an earlier configuration does not count"
        )
    await fleet.pass_ms(5_000)
    assert {n: fleet.replica(n).status().term for n in terms} == terms


@scenario(members=masters)
async def test_tombstone_keeps_its_term_and_vote_from_a_stranger(fleet):
    await fleet.write(b"k 1")
    gone = (await fleet.leader() + 1) % 3
    await fleet.as_(gone, fleet.host(gone).delete_replica(GROUP))
    assert fleet.replica(gone).state is State.TOMBSTONED
    before = fleet.replica(gone).tombstone.superblock
    assert attack(fleet, gone, STRANGER) == 3
    await fleet.pass_ms(1_000)
    assert fleet.replica(gone).tombstone.superblock == before


@pytest.mark.parametrize("first", [None, Unavailable("no leader")], ids=["unknown", "no answer"])
def test_member_that_this_replica_does_not_know_yet_counts_once_the_masters_name_it(first):
    @scenario(servers=5, start=False, members=masters)
    async def late_replica_is_caught_up(fleet):
        KNOWN.answer = first
        for number in range(5):
            await fleet.boot(number)
        members = fleet.configuration(range(5)).members
        late = replace(members[4], voter=False)
        now, before = initial([*members[:2], late]), initial([*members[2:4], late])
        for number, config in ((0, now), (1, now), (4, before)):
            await fleet.create(number, GROUP, config)
        for _ in range(3):
            await fleet.write(b"k 1")
        await fleet.pass_ms(3_000)
        assert fleet.machine(4).sums == {}, "its leader is not a member, as far as it knows"
        KNOWN.answer = Configuration(now.members, OpId(1, 1))
        await fleet.until(lambda: fleet.machine(4).sums == {"k": 3}, "the late one is caught up")
        assert attack(fleet, 4, STRANGER) == 3

    late_replica_is_caught_up()
