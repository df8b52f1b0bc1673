"""State of a tablet's group as repair sees it, and the steps that repair can take. Values.

A witness counts for majorities only: it has no data, so it is no replica.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from nyala.common.ids import ServerUuid


class ReplicaHealth(Enum):
    """Health of a member, as its leader, its server and its copy report it."""

    HEALTHY = "HEALTHY"
    SILENT = "SILENT"
    """It does not answer, and may return: no repair is started for it."""
    FAILED = "FAILED"
    """It is to be replaced, and is kept if it returns before that."""
    UNRECOVERABLE = "FAILED_UNRECOVERABLE"
    """It is to be replaced and cannot recover: its data are damaged or lost, or the log lacks its entries."""

    @property
    def failed(self) -> bool:
        """True when it is to be replaced."""
        return self in (ReplicaHealth.FAILED, ReplicaHealth.UNRECOVERABLE)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of one member of a committed configuration.

    Attributes:
        uuid: its server.
        voter: counts in elections and commits.
        promote: a non-voter that is to become a voter; a witness that is to get the data.
        replace: a voter that is to be replaced; a non-voter whose vote a witness has.
        electable: False for a witness.
        health: as reported.
        holds: its server reports a replica.
        log_only: that replica has a log without data.
        load: number of replicas of its server.
        location: failure domain of its server.
    """

    uuid: ServerUuid
    voter: bool = True
    promote: bool = False
    replace: bool = False
    electable: bool = True
    health: ReplicaHealth = ReplicaHealth.HEALTHY
    holds: bool = True
    log_only: bool = False
    load: int = 0
    location: str = ""

    @property
    def is_data_voter(self) -> bool:
        """True for a voter with data."""
        return self.voter and self.electable

    @property
    def healthy(self) -> bool:
        """True when it answers and has what it needs."""
        return self.health is ReplicaHealth.HEALTHY

    @property
    def failed(self) -> bool:
        """True when its health calls for another replica instead."""
        return self.health.failed


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of one tablet's group, from the catalog and the reports.

    Attributes:
        leader: the member that takes orders.
        replicas: wanted number of voters with data.
        members: the members.
        witness_first: a witness replaces the vote of a lost member until another replica has the data.
    """

    leader: ServerUuid
    replicas: int
    members: tuple[ReplicaState, ...]
    witness_first: bool = False

    @property
    def fully_replicated(self) -> bool:
        """True when the members are the wanted number of voters with data, all healthy."""
        return len(self.members) == self.replicas and all(
            s.is_data_voter and s.healthy and not s.replace for s in self.members
        )

    @property
    def joining(self) -> list[ReplicaState]:
        """Members that get the data and are then promoted to voters."""
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
    """Add a non-voter that is to become a voter, with the data or as a witness."""

    server: ServerUuid
    witness: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a member.

    Attributes:
        server: its server.
        why: the reason.
        in_place: its server is to get the new replica.
    """

    server: ServerUuid
    why: str
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Modify:
    """Change the attributes of a member."""

    server: ServerUuid
    voter: bool
    promote: bool
    replace: bool
    electable: bool
    why: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the leader's data to a member without data."""

    server: ServerUuid


@dataclass(frozen=True, slots=True)
class MakeWitness:
    """Create a log without data on a member without a replica."""

    server: ServerUuid


ConfigChange = Add | Remove | Modify
RepairStep = ConfigChange | Copy | MakeWitness


def no_witness() -> ServerUuid | None:
    """Return None: no server can be a witness."""
    return None


def any_server(_server: ServerUuid) -> bool:
    """Return True: every server may be given data."""
    return True


def never_in_place(_server: ServerUuid) -> bool:
    """Return False: no replica is replaced on its own server."""
    return False


@dataclass(frozen=True, slots=True)
class TargetServers:
    """Choice of servers for new replicas and witnesses, within the limits of repair.

    Attributes:
        replica: returns a server for a new replica, instead of a member if one is given; None: not now.
        witness: returns a server for a witness, which never had a replica of this tablet; None: none.
        may_fill: returns whether a server may get the data of one more replica.
        in_place: returns whether a member's own server may get its new replica, and no other server can.
    """

    replica: Callable[[ServerUuid | None], ServerUuid | None]
    witness: Callable[[], ServerUuid | None] = no_witness
    may_fill: Callable[[ServerUuid], bool] = any_server
    in_place: Callable[[ServerUuid], bool] = never_in_place
