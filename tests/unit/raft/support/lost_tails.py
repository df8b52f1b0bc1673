"""A group of three whose members lose the tails of their logs."""

from collections.abc import Callable

from nyala.raft.messages import AnyMessage
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = "1", "2", "3"


def everything(_: AnyMessage) -> bool:
    return True


def without(*uuids: str) -> Callable[[AnyMessage], bool]:
    return lambda m: m.to not in uuids and m.sender not in uuids


def led() -> Cluster:
    group = Cluster((ONE, TWO, THREE))
    group.elect(ONE)
    return group


def write(group: Cluster, *payloads: str, wants: Callable[[AnyMessage], bool] = everything) -> None:
    for payload in payloads:
        assert group.propose(ONE, payload) is not None
        group.settle(wants)
        group.network.clear()


def lose_tail(group: Cluster, uuid: str, last: int) -> None:
    """Restart a member whose disk has entries up to `last` only."""
    group.crash(uuid)
    log = group.servers[uuid].disk.log
    for index in [i for i in log if i > last]:
        del log[index]
    group.restart(uuid)


def match(group: Cluster, uuid: str) -> int:
    return next(p.match for p in group[ONE].status().peers if p.uuid == uuid)
