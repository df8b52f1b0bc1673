"""State of a tablet's group as repair sees it, and the steps that repair can take. Values.

A witness counts for majorities only: it has no data, so it is no replica.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from nyala.common.ids import ServerUuid


class ReplicaHealth(Enum):
    """Health of a member, as its leader, its server and its copy report it."""

    FINE = "FINE"
    SILENT = "SILENT"
    """It does not answer, and may come back: nothing is decided on it."""
    FAILED = "FAILED"
    """It is to be replaced."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of one member of a committed configuration.

    Attributes:
        uuid: its server.
        voter: counts in elections and commits.
        promote: a non-voter that is to become a voter; a witness that is to get the data.
        replace: a voter that is to be replaced; a non-voter whose vote a witness has.
        electable: False for a witness.
        health: what is known of it.
        holds: whether it has a replica, as its server reports.
        log_only: that replica has no data.
        load: how many replicas its server has.
        location: what its server may lose together with others.
    """

    uuid: ServerUuid
    voter: bool = True
    promote: bool = False
    replace: bool = False
    electable: bool = True
    health: ReplicaHealth = ReplicaHealth.FINE
    holds: bool = True
    log_only: bool = False
    load: int = 0
    location: str = ""

    @property
    def full(self) -> bool:
        """True for a voter with data."""
        return self.voter and self.electable

    @property
    def healthy(self) -> bool:
        """True when it answers and has what it needs."""
        return self.health is ReplicaHealth.FINE


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of one tablet's group, from the catalog and the reports.

    Attributes:
        leader: the member that takes orders.
        replicas: how many voters with data there should be.
        members: the members.
        witness_first: whether a witness stands in for who is lost until another one has the data.
    """

    leader: ServerUuid
    replicas: int
    members: tuple[ReplicaState, ...]
    witness_first: bool = False

    @property
    def fully_replicated(self) -> bool:
        """True when the members are the wanted number of voters with data, all healthy."""
        return len(self.members) == self.replicas and all(
            s.full and s.healthy and not s.replace for s in self.members
        )

    @property
    def joining(self) -> list[ReplicaState]:
        """Members that get the data and then a vote."""
        return [s for s in self.members if not s.voter and s.promote and s.electable]

    @property
    def witnesses(self) -> list[ReplicaState]:
        """Members that have, or are to get, a log without data."""
        return [s for s in self.members if not s.electable]

    def majority_without(self, member: ReplicaState) -> bool:
        """Return whether the voters other than this member have a healthy majority."""
        stays = [s for s in self.members if s.voter and s is not member]
        return 2 * sum(s.healthy for s in stays) > len(stays)


@dataclass(frozen=True, slots=True)
class Add:
    """A member joins that is to become a voter; with the data, or as a witness."""

    server: ServerUuid
    witness: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """A member leaves."""

    server: ServerUuid
    why: str


@dataclass(frozen=True, slots=True)
class Modify:
    """A member becomes what is said here."""

    server: ServerUuid
    voter: bool
    promote: bool
    replace: bool
    electable: bool
    why: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A member without data is given the leader's."""

    server: ServerUuid


@dataclass(frozen=True, slots=True)
class MakeWitness:
    """A member without a replica makes a log without data."""

    server: ServerUuid


ConfigChange = Add | Remove | Modify
RepairStep = ConfigChange | Copy | MakeWitness


def nobody() -> ServerUuid | None:
    """Return None: no server can be a witness."""
    return None


def anybody(_server: ServerUuid) -> bool:
    """Return True: every server may be given data."""
    return True


@dataclass(frozen=True, slots=True)
class TargetServers:
    """Choice of servers for new replicas and witnesses, within the limits of repair.

    Attributes:
        replica: a server for a new replica, in the place of a member if one is named; None: not now.
        witness: a server for a witness, which never had a replica of this tablet; None: there is none.
        may_fill: whether a server may be given the data of one more replica.
    """

    replica: Callable[[ServerUuid | None], ServerUuid | None]
    witness: Callable[[], ServerUuid | None] = nobody
    may_fill: Callable[[ServerUuid], bool] = anybody
