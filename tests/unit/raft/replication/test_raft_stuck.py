"""Ticks without acknowledgements of a member that lacks entries, regardless of its other answers."""

from msgspec.structs import replace

from nyala.raft.messages import AnyMessage, AppendEntries
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = "1", "2", "3"


def led() -> Cluster:
    group = Cluster((ONE, TWO, THREE))
    group.elect(ONE)
    return group


def stuck(group: Cluster, uuid: str) -> int:
    return next(p.ticks_stuck for p in group[ONE].status().peers if p.uuid == uuid)


def pass_ticks(group: Cluster, ticks: int, *, empty_for: str = "") -> None:
    """Let time pass; messages to one member lose their entries."""

    def emptied(message: AnyMessage) -> AnyMessage:
        if isinstance(message, AppendEntries) and message.to == empty_for:
            return replace(message, entries=())
        return message

    for _ in range(ticks):
        group.tick(ONE)
        for _ in range(6):
            batch, group.network = group.network, []
            for message in batch:
                group.deliver(emptied(message))


def test_member_that_answers_without_progress_is_stuck_since_last_progress():
    group = led()
    pass_ticks(group, 100)
    assert stuck(group, TWO) == stuck(group, THREE) == 0
    for _ in range(10):
        group.propose(ONE, "x")
        pass_ticks(group, 10, empty_for=TWO)
    heartbeat = group.options.heartbeat_ticks
    assert 100 - heartbeat <= stuck(group, TWO) <= 100 + heartbeat
    assert stuck(group, THREE) <= heartbeat
    silent = next(p.ticks_silent for p in group[ONE].status().peers if p.uuid == TWO)
    assert silent <= heartbeat
    pass_ticks(group, 10)
    assert stuck(group, TWO) == 0


def test_up_to_date_member_is_not_stuck_between_heartbeats():
    group = led()
    for _ in range(4 * group.options.heartbeat_ticks):
        pass_ticks(group, 1)
        assert stuck(group, TWO) == stuck(group, THREE) == 0


def test_lagging_member_with_progress_is_not_stuck():
    group = led()
    for _ in range(50):
        group.propose(ONE, "x")
        pass_ticks(group, 2)
        group.propose(ONE, "y")
        group.tick(ONE, 2)  # and that is not answered yet
        assert stuck(group, TWO) <= 4 + group.options.heartbeat_ticks
