"""A new leader takes writes once it has applied the first entry of its own term."""

import pytest

from nyala.common.errors import Unavailable
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import GROUP, scenario

SLOW_US = 3_000_000


@scenario()
async def test_new_leader_applies_earlier_commits_before_proposing(fleet):
    first = await fleet.leader()
    successor = (first + 1) % 3
    await fleet.settled()
    fleet.processes[successor].delays.apply_us = SLOW_US
    for sequence in range(1, 4):
        await fleet.as_(first, fleet.call(first, b"k 1", sequence=sequence))
    fleet.replica(first).transfer(fleet.replica(successor).context.uuid)
    replica, machine = fleet.replica(successor), fleet.machine(successor)
    await fleet.until(lambda: replica.is_leader, "the successor leads")
    node = replica.node
    await fleet.until(lambda: node.commit_index == node.last.index, "its first entry is committed")
    assert machine.runs < 3  # it has not applied its predecessor's entries yet
    last = node.last
    with pytest.raises(Unavailable, match="has not applied an entry"):
        await fleet.as_(successor, fleet.call(successor, b"k 1", sequence=4, timeout_ms=500))
    assert node.last == last
    assert replica.state is State.CONFIGURING
    answer = fleet.spawn(successor, fleet.call(successor, b"k 1", sequence=4, timeout_ms=60_000))
    await fleet.until(lambda: fleet.leading() == successor, "the successor accepts writes")
    assert machine.runs >= 3
    await fleet.until(lambda: answer, "an answer")
    assert answer[0].result == b"4"
    assert fleet.replica(successor).group == GROUP
