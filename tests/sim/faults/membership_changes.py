"""Membership changes and leadership transfers as faults, beside all others.

Each requested configuration has three voters at least, a majority of them on disks that do
not fail, and two electable ones among those; so the group can make progress with any outcome.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Configuration, Member
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.sim.world.process import SimProcess

LEAST_VOTERS = 3


class Members:
    """Requests changes of one group.

    Args:
        cluster: of the group.
        servers: all servers as members, by name.
        prone: uuids of servers with disk faults.
        rng: source of the choices.
    """

    def __init__(
        self, cluster: Any, servers: dict[str, Member], prone: set[str], rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._servers = servers
        self._prone = prone
        self._rng = rng

    async def change(self) -> None:
        """Request one of the allowed changes from the leader."""
        leader = self._cluster.leader()
        if leader is None or leader.server is None or leader.server.node is None:
            return
        config = leader.server.node.core.configs.active
        wanted = list(self._wanted(config))
        if not wanted:
            return
        change = self._rng.choice(wanted)
        expected = None if self._rng.random() < 0.5 else config.id
        if self._rng.random() < 0.05:
            expected = OpId(config.id.term + 7, config.id.index)  # must be refused
        member = self._name(change.member.uuid)
        text = f"{leader.name} {change.kind.value} {member} {_attributes(change.member)}"
        self._cluster.loop.trace.note("change_config", text)
        leader.run(self._ask, leader.server, change, expected)

    async def _ask(self, server: Any, change: Change, expected: OpId | None) -> None:
        trace = self._cluster.loop.trace
        try:
            await server.change_config([change], expected)
        except NyalaError as err:
            trace.note("change_refused", f"{type(err).__name__} {err}")
        else:
            wrong = expected is not None and expected.term > server.node.term
            assert not wrong, f"a change on top of {expected} was accepted"
            trace.note("change_taken", "")

    def _wanted(self, config: Configuration) -> Iterator[Change]:
        """Return all allowed changes."""
        for member in self._servers.values():
            now = config.get(member.uuid)
            if now is None:
                for new in (
                    replace(member, voter=False, promote=True),
                    replace(member, voter=True),
                ):
                    yield from self._if_sound(config, Change(ChangeKind.ADD, new))
                continue
            yield from self._if_sound(config, Change(ChangeKind.REMOVE, now))
            others = (
                replace(now, voter=not now.voter, promote=False),
                replace(now, electable=not now.electable),
                replace(now, promote=not now.promote and not now.voter),
            )
            for other in others:
                if other != now:
                    yield from self._if_sound(config, Change(ChangeKind.MODIFY, other))

    def _if_sound(self, config: Configuration, change: Change) -> Iterator[Change]:
        uuid = change.member.uuid
        members = [m for m in config.members if m.uuid != uuid]
        if change.kind is not ChangeKind.REMOVE:
            members.append(change.member)
        # One that is to be promoted may or may not be a voter when its disk fails.
        voters = [m for m in members if m.voter or (m.promote and m.uuid in self._prone)]
        sound = [m for m in voters if m.uuid not in self._prone]
        leaders = [m for m in sound if m.electable]
        if len(voters) >= LEAST_VOTERS and 2 * len(sound) > len(voters) and len(leaders) >= 2:
            yield change

    async def transfer(self) -> None:
        """Order a transfer of leadership to some member, electable or not."""
        leader = self._cluster.leader()
        if leader is None or leader.server is None or leader.server.node is None:
            return
        config = leader.server.node.core.configs.active
        to = self._rng.choice(config.members).uuid
        self._cluster.loop.trace.note("transfer", f"{leader.name} -> {self._name(to)}")
        leader.run(self._hand_over, leader, to)

    async def _hand_over(self, leader: SimProcess, to: ServerUuid) -> None:
        try:
            leader.server.transfer(to)
        except NyalaError as err:
            self._cluster.loop.trace.note("transfer_refused", f"{type(err).__name__} {err}")

    def _name(self, uuid: str) -> str:
        return next(n for n, m in self._servers.items() if m.uuid == uuid)


def _attributes(member: Member) -> str:
    words = ["voter" if member.voter else "non-voter"]
    words += ["promote"] * member.promote + ["witness"] * (not member.electable)
    return " ".join(words)
