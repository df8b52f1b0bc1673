"""Groups for tests of the planner of repairs: members, next steps, a group that executes them."""

# mypy: disable-error-code="arg-type, return-value"
# Servers are named by plain strings here.

from dataclasses import replace

from nyala.master.catalog.group_state import (
    Add,
    Copy,
    GroupState,
    MakeWitness,
    Modify,
    Remove,
    ReplicaHealth,
    ReplicaState,
    TargetServers,
)
from nyala.master.repair.next_steps import next_steps

HEALTHY, SILENT, FAILED = ReplicaHealth.HEALTHY, ReplicaHealth.SILENT, ReplicaHealth.FAILED
UNRECOVERABLE = ReplicaHealth.UNRECOVERABLE


def tablet(*members, replicas=3, leader="a", witness_first=False):
    return GroupState(leader, replicas, tuple(members), witness_first)


def healthy(name, **more):
    return ReplicaState(name, **more)


def steps(*members, spare="x", **more):
    return next_steps(tablet(*members, **more), TargetServers(lambda _: spare, lambda: spare))


class Group:
    """A group that executes orders: its leader commits with a majority, and promotes complete members."""

    def __init__(self, situation, spare=12):
        self.situation = situation
        self.spare = [f"spare-{n}" for n in range(spare)]

    @property
    def voters(self):
        return [s for s in self.situation.members if s.voter]

    @property
    def answering(self):
        return [s for s in self.voters if s.health is HEALTHY]

    def put(self, members):
        self.situation = replace(self.situation, members=tuple(members))

    def step(self, step):
        members = list(self.situation.members)
        if isinstance(step, Add):
            assert step.server not in [s.uuid for s in members]
            members.append(ReplicaState(step.server, voter=False, promote=not step.witness,
                              electable=not step.witness, holds=False))  # fmt: skip
        elif isinstance(step, Remove):
            if step.in_place:
                self.check_in_place(step.server)
                self.spare.append(step.server)
            self.remove(step.server)
            return
        elif isinstance(step, Modify):
            member = next(s for s in members if s.uuid == step.server)
            assert step.electable or not member.is_data_voter, "a voter with data becomes a witness"
            assert not (step.voter and step.electable) or not member.log_only, "a leader has data"
            made = replace(member, voter=step.voter, promote=step.promote, replace=step.replace,
                           electable=step.electable)  # fmt: skip
            members = [made if s is member else s for s in members]
        else:
            log = isinstance(step, MakeWitness)
            members = [
                replace(s, holds=True, log_only=log) if s.uuid == step.server else s
                for s in members
            ]
        self.put(members)

    def check_in_place(self, server):
        member = next(s for s in self.situation.members if s.uuid == server)
        assert member.health is UNRECOVERABLE
        assert not self.spare, "another server can get the replica"
        others = [s for s in self.answering if s is not member]
        assert 2 * len(others) > len(self.voters), "the others are no majority of all voters"
        assert [s for s in others if s.electable], "the only member with data stays"

    @property
    def data(self):
        """Voters that answer and have the data."""
        return [s for s in self.answering if s.electable]

    def remove(self, server):
        if server == self.situation.leader:
            others = [s for s in self.data if s.uuid != server]
            assert others, "a leader without a successor is removed"
            self.situation = replace(self.situation, leader=others[0].uuid)
            return  # leadership was transferred; the removal is derived again
        self.put(s for s in self.situation.members if s.uuid != server)

    def promote(self):
        members = list(self.situation.members)
        for n, member in enumerate(members):
            ready = member.promote and member.holds and member.health is HEALTHY
            if ready and not member.voter and member.electable:
                members[n] = replace(member, voter=True, promote=False)
                self.put(members)
                return

    def look(self):
        servers = TargetServers(lambda _: self.spare.pop(0) if self.spare else None,
                          lambda: self.spare.pop(0) if self.spare else None,
                          in_place=lambda _: not self.spare)  # fmt: skip
        found = next_steps(self.situation, servers)
        changes = [s for s in found if not isinstance(s, Copy | MakeWitness)]
        assert len(changes) <= 1
        for step in found:
            before = len(self.data)
            self.step(step)
            assert 2 * len(self.answering) > len(self.voters), self.situation
            assert len(self.data) >= min(before, self.situation.replicas), (
                "a healthy replica was removed"
            )
        if not found:
            self.promote()
        return found


def in_place(*members, **more):
    """Steps if only a member's own server can take a replica."""
    servers = TargetServers(lambda _: None, in_place=lambda _: True)
    return next_steps(tablet(*members, **more), servers)


def made(name, why, **more):
    """Steps for a lost member and for a witness."""
    fields = {"voter": True, "promote": False, "replace": False, "electable": True, **more}
    return Modify(name, why=why, **fields)
