"""Bounds of one exploration, and the first state of its group."""

from dataclasses import dataclass

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Configuration, initial
from nyala.raft.membership import Member as ConfigMember
from nyala.raft.messages import HardState
from tests.model import member as inputs
from tests.model.member import Member, boot


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one exploration; within them every order of all actions is explored.

    Attributes:
        name: name of the exploration.
        top_term: no candidate has a higher term.
        top_index: no operation is proposed beyond it (a new leader's NOOP is not an operation).
        crashes: number of crashes, of any member at any time.
        slow: whether disks sync only by an action of their own, batch by batch.
        pre_vote: whether a timeout begins with a pre-vote; without one more states are possible.
        voters: voters with data.
        witnesses: its voters that never lead.
        learners: its non-voters.
        spares: servers outside of the group that may be added.
        changes: membership changes that leaders may make, as text: "+4" adds a voter, "-3" removes one.
        transfers: whether leaders may transfer leadership.
        stalls: whether leaders detect lost messages or the absence of a majority.
        led: the group begins with member 1 leading term 1, its NOOP committed everywhere; otherwise with
            nothing.
    """

    name: str
    top_term: int
    top_index: int
    crashes: int = 0
    slow: bool = False
    pre_vote: bool = False
    voters: str = "123"
    witnesses: str = ""
    learners: str = ""
    spares: str = ""
    changes: tuple[str, ...] = ()
    transfers: bool = False
    stalls: bool = True
    led: bool = True

    @property
    def config(self) -> Configuration:
        """The configuration that the group begins with."""
        return initial(
            named(u, voter=u not in self.learners, electable=u not in self.witnesses)
            for u in self.voters + self.witnesses + self.learners
        )

    @property
    def uuids(self) -> str:
        """Every server."""
        return "".join(sorted(self.voters + self.witnesses + self.learners + self.spares))


def named(uuid: str, *, voter: bool = True, electable: bool = True) -> ConfigMember:
    """Return the entry of one server in a configuration."""
    return ConfigMember(ServerUuid(uuid), f"{uuid}:1", voter=voter, electable=electable)


def begin(bounds: Bounds) -> list[Member]:
    """Return the members of the initial state, without messages in flight."""
    config = bounds.config
    members = {
        u: Member(boot(u, config, HardState(), ()), config, slow=False) for u in bounds.uuids
    }
    for one in members.values():
        inputs.settle(one)
    if bounds.led:
        _elect_first(members)
    for one in members.values():
        one.slow = bounds.slow
    return list(members.values())


def _elect_first(members: dict[str, Member]) -> None:
    first = next(iter(members.values()))
    network = inputs.time_out(first)
    for _ in range(2):
        while network:
            message = network.pop(0)
            network += inputs.take(members[message.to], message)
        network += inputs.heartbeat(first)
    while network:
        message = network.pop(0)
        network += inputs.take(members[message.to], message)
    assert first.node.is_leader, "no server leads"
    assert all(
        m.node.commit_index == 1
        for m in members.values()
        if first.node.core.configs.active.get(m.node.core.uuid)
    ), "the NOOP is not committed everywhere"
