"""Next step of a change of members, decided on one view of the group. Nothing is executed here.

A step never leaves the group with fewer voters that answer than it needs. A member without data does not
vote, except a witness, which has the log.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from nyala.common.errors import InvalidArgument
from nyala.operate.group_view import ClusterServer, GroupView
from nyala.operate.member_rpcs import MemberRpcs, tenths
from nyala.raft.membership import Member


class MemberKind(StrEnum):
    """Kind of a member, as in commands."""

    VOTER = "VOTER"
    NON_VOTER = "NON_VOTER"
    WITNESS = "WITNESS"


@dataclass(frozen=True, slots=True)
class MemberStep:
    """One step.

    Attributes:
        words: description for operators.
        act: executes the step; None: the servers are executing it.
    """

    words: str
    act: Callable[[], Awaitable[object]] | None = None


_NEW_MEMBER = {
    MemberKind.VOTER: "a non-voter to be promoted",
    MemberKind.NON_VOTER: "a non-voter",
    MemberKind.WITNESS: "a witness that does not vote yet",
}


def kind_of(member: Member) -> MemberKind:
    """Return the kind that a member has, or is to become."""
    if not member.electable:
        return MemberKind.WITNESS
    return MemberKind.VOTER if member.voter or member.promote else MemberKind.NON_VOTER


def check(group: GroupView, server: ClusterServer, kind: MemberKind) -> None:
    """Check that a member can become another kind without loss.

    Args:
        group: present view of the group.
        server: id of the member's server.
        kind: the wanted kind of member.

    Raises:
        InvalidArgument: it is another kind of member, or a voter whose vote is lost.
    """
    member, replica = group.member(server), group.of(server)
    if kind is MemberKind.WITNESS and (replica.state == "TOMBSTONED" or replica.has_data):
        raise InvalidArgument(
            f"{server} has a replica with data, or had one, and cannot be a witness: add it as a "
            f"{MemberKind.VOTER}"
        )
    if member is None:
        return
    lost = not replica.silent and (not replica.exists or replica.state == "FAILED")
    if kind is MemberKind.VOTER and member.electable and member.voter and lost:
        raise InvalidArgument(
            f"{server} is a voter whose replica is {replica.state or 'missing'}, and its vote is lost: "
            "remove_replica first, then add_replica"
        )


class MemberSteps:
    """Choice of the next step.

    Args:
        orders: executes the steps.
    """

    def __init__(self, orders: MemberRpcs) -> None:
        self._orders = orders

    def next_step(
        self, server: ClusterServer, kind: MemberKind, group: GroupView
    ) -> MemberStep | None:
        """Return the next step until a server is a member of this kind; None: it is.

        Args:
            server: the member.
            kind: the wanted kind of member.
            group: as it is.
        """
        if wait := _unsettled(group):
            return wait
        member, replica = group.member(server), group.of(server)
        if member is None:
            if replica.exists and group.config is not None and server.uuid in group.config.lost:
                return self.deleting(
                    server, group
                )  # it may have entries that the group has replaced
            return self._change(
                group, f"add {server} as {_NEW_MEMBER[kind]}", ("add", _fresh(server, kind))
            )
        if kind is MemberKind.WITNESS:
            return self._witnessing(server, member, group)
        if kind is MemberKind.NON_VOTER and member.voter:
            return self._demoting(server, member, group)
        if not replica.has_data and not (kind is MemberKind.NON_VOTER and replica.silent):
            return self._filling(server, member, group)
        promote = kind is MemberKind.VOTER and not member.voter
        wanted = replace(member, electable=True, promote=promote)
        if kind is MemberKind.VOTER and member.replace:
            stays = replace(wanted, replace=False)
            return self._change(
                group, f"keep {server}: no other member replaces it", ("modify", stays)
            )
        if member != wanted:
            return self._change(group, f"make {server} {_words(wanted)}", ("modify", wanted))
        return (
            MemberStep(f"wait until {server} has caught up and is made a voter")
            if promote
            else None
        )

    def replacing(
        self, old: ClusterServer, new: ClusterServer, group: GroupView
    ) -> MemberStep | None:
        """Return the next step until `new` is a voter that replaces `old`; None: it is.

        The member to be removed is marked `replace`, which distinguishes a move from a growing group.

        Args:
            old: server of the voter that leaves.
            new: server of the voter that joins.
            group: as it is.

        Raises:
            InvalidArgument: both are voters, and neither is marked as replaced.
        """
        if wait := _unsettled(group):
            return wait
        leaving, coming = group.member(old), group.member(new)
        if leaving is not None and not leaving.replace:
            if coming is not None and coming.voter and coming.electable:
                raise InvalidArgument(
                    f"{old} and {new} are voters both: there is nothing to move. remove_replica removes one"
                )
            edits = [("modify", replace(leaving, replace=True))]
            if coming is None:
                edits.append(("add", _fresh(new, MemberKind.VOTER)))
            words = f"add {new} as a non-voter to be promoted, in the place of {old}"
            return self._change(group, words, *edits)
        return self.next_step(new, MemberKind.VOTER, group)

    def leaving(self, server: ClusterServer, group: GroupView) -> MemberStep | None:
        """Return the next step until a server is no member and has no replica; None: reached."""
        if wait := _unsettled(group):
            return wait
        replica, member = group.of(server), group.member(server)
        if replica.copying:
            return MemberStep(f"cancel the copy to {server}", partial(self._orders.cancel, server))
        if member is not None:
            if group.leader == server:
                return self.transfer_step(server, None)
            return self._change(group, f"remove {server} from the group", ("remove", member))
        return self.deleting(server, group) if replica.exists else None

    def transfer_step(self, leader: ClusterServer, successor: ClusterServer | None) -> MemberStep:
        """Return the step that transfers leadership."""
        to = str(successor) if successor else "the most up-to-date voter"
        order = partial(self._orders.step_down, leader, successor)
        return MemberStep(f"transfer leadership from {leader} to {to}", order)

    def deleting(self, server: ClusterServer, group: GroupView) -> MemberStep:
        """Return the step that leaves a tombstone of a replica."""
        order = partial(self._orders.delete, server, group)
        return MemberStep(f"delete the replica of {server}; its vote stays as a tombstone", order)

    def _filling(self, server: ClusterServer, member: Member, group: GroupView) -> MemberStep:
        """Return the step that copies the leader's data to a member without data."""
        replica, leader = group.of(server), group.leader
        assert leader is not None, "settled without a leader"
        if replica.silent:
            return MemberStep(f"wait for {server}: {replica.silent}")
        if replica.state == "BOOTSTRAPPING":
            return MemberStep(f"wait until {server} has opened its replica")
        if replica.copying and replica.copy is not None:
            where = f"from {replica.copy.source_address} to {server}"
            return MemberStep(f"wait for the copy {where}: {tenths(replica.copy)}")
        if not member.electable and member.voter and not member.promote:
            keeps = ("modify", replace(member, promote=True))
            return self._change(group, f"let the witness {server} keep all of its log", keeps)
        order = partial(self._orders.copy, server, leader, last=replica.copy)
        return MemberStep(f"copy the replica of {leader} to {server}", order)

    def _witnessing(
        self, server: ClusterServer, member: Member, group: GroupView
    ) -> MemberStep | None:
        """Return the next step of a witness: a non-voter until it has a log, then not electable."""
        if member.voter:
            return None
        replica, leader = group.of(server), group.status
        assert leader is not None, "settled without a leader"
        if replica.silent:
            return MemberStep(f"wait for {server}: {replica.silent}")
        if leader.applied_index < leader.report.consensus.config_index:
            return MemberStep("wait until the leader has applied its configuration")
        if not replica.exists:
            order = partial(self._orders.witness, server, group)
            return MemberStep(f"make a log without data on {server}", order)
        voter = ("modify", replace(member, voter=True))
        return self._change(group, f"make the witness {server} a voter", voter)

    def _demoting(self, server: ClusterServer, member: Member, group: GroupView) -> MemberStep:
        if group.leader == server:
            return self.transfer_step(server, None)
        wanted = replace(member, voter=False, promote=False)
        return self._change(group, f"make {server} a non-voter", ("modify", wanted))

    def _change(self, group: GroupView, words: str, *edits: tuple[str, Member]) -> MemberStep:
        return MemberStep(words, partial(self._orders.change, group, *edits))


def _fresh(server: ClusterServer, kind: MemberKind) -> Member:
    return Member(
        server.uuid,
        server.peer_address,
        server.address,
        voter=False,
        promote=kind is MemberKind.VOTER,
        electable=kind is not MemberKind.WITNESS,
    )


def _words(member: Member) -> str:
    if member.voter:
        return "a voter that may lead"
    return "a non-voter to be promoted" if member.promote else "a non-voter"


def _unsettled(group: GroupView) -> MemberStep | None:
    if group.leader is None:
        return MemberStep(
            "wait for a leader; nyala tablet survivors shows whether one can be elected"
        )
    return MemberStep("wait until the change under way is committed") if group.changing else None
