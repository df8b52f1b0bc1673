"""Servers removed by an unsafe change return, and are added again with their old state."""

import pytest

from nyala.common.errors import Forbidden, Unavailable
from nyala.raft.reconfiguration.unsafe_recovery import TERM_GAP
from nyala.replica.status import State
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_support import uuid_of

LOST, KEPT = 10, 5


async def gone_on_without(fleet):
    """Stop two of three with LOST more writes; return their leader, and the survivor."""
    await fill(fleet)
    await fleet.settled()
    leader = await fleet.leader()
    left = (leader + 1) % 3
    fleet.processes[left].kill()
    await fill(fleet, LOST)
    assert await flush(fleet) == leader
    for number in range(3):
        if number != left:
            fleet.processes[number].kill()
    await fleet.restart(left)
    member = fleet.replica(left).running_member()
    member.unsafe_change_config([uuid_of(left)], member.node.term + TERM_GAP)
    assert await fleet.leader() == left
    await fill(fleet, KEPT)
    return leader, left


@pytest.mark.row("S1.42")
@scenario(servers=3)
async def test_removed_unrecoverable_replica_readded_without_deletion_fails_and_never_votes(fleet):
    dead, left = await gone_on_without(fleet)
    await fleet.restart(dead)
    assert fleet.machine(dead).sums == {"k": 20 + LOST}, (
        "the removed server has entries that the group lacks"
    )
    await add(fleet, dead)
    await fleet.until(
        lambda: fleet.replica(dead).state is State.FAILED, "the removed replica has failed"
    )
    assert isinstance(fleet.replica(dead).error, Forbidden)
    with pytest.raises(
        Unavailable,
        match=r"removed by an unsafe recovery.* delete it and let the group copy it again",
    ):
        fleet.replica(dead).running_member()
    await fill(fleet, KEPT)
    config = fleet.replica(left).status().committed_config
    assert config.voters == (uuid_of(left),)
    await fleet.as_(dead, fleet.host(dead).delete_replica(fleet.replica(left).group))
    await fleet.order(dead, left)
    await fleet.until(
        lambda: uuid_of(dead) in fleet.replica(left).status().committed_config.voters,
        "a copy of the group's state is a voter",
    )
    await fleet.settled()
    assert fleet.machine(dead).sums == fleet.machine(left).sums == {"k": 20 + 2 * KEPT}
