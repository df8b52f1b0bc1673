"""Changes of the members of one tablet, from any state of its group."""

from collections.abc import Callable
from functools import partial

from nyala.client.core import ClientCore
from nyala.common.errors import (
    CasFailed,
    InvalidArgument,
    OutcomeUnknown,
    Retryable,
    TimedOut,
    Unavailable,
)
from nyala.operate.group_view import (
    ClusterServer,
    GroupView,
    ServerDirectory,
    TServerDirectory,
    view,
)
from nyala.operate.member_rpcs import MemberRpcs
from nyala.operate.member_steps import MemberKind, MemberStep, MemberSteps, check

POLL_MS = 100
LACKING_MS = 5_000
"""Time for which a leader has to report that its log lacks entries that a non-voter needs, in milliseconds.
"""
SILENT_MS = 3_000
"""Milliseconds without a response after which a removed server counts as dead, and its data are left there.

A server that was just started, or is busy for a moment, responds earlier.
"""
LOST_MS = 30_000
"""Milliseconds without a response of a server that is to have a replica, or to lead: the command fails then.
"""


Decide = Callable[[GroupView], MemberStep | None]
"""Returns the next step of a group; None: the goal is reached."""


class Membership:
    """The members of one tablet, changed one step at a time. On the client's loop.

    Each step is decided on a new view of the group and is a compare-and-set, so that a command that was
    killed or lost a response can be repeated.

    Args:
        core: a client of the cluster.
        tablet: its id.
        notify: called with each step before it is taken.
        timeout_ms: a command without progress for so long fails with TimedOut.
        directory: the servers that may have replicas; None: all tablet servers.

    Attributes:
        done: the steps taken.
        directory: the servers that may have replicas.
        steps: choice of the next step.
    """

    def __init__(
        self,
        core: ClientCore,
        tablet: str,
        notify: Callable[[str], None] = lambda _: None,
        timeout_ms: int = 60_000,
        directory: ServerDirectory | None = None,
    ) -> None:
        self.core = core
        self.tablet = tablet
        self.notify = notify
        self.timeout_ms = timeout_ms
        self.done: list[str] = []
        self.directory = directory or TServerDirectory(core)
        self._orders = MemberRpcs(self.directory, tablet)
        self.steps = MemberSteps(self._orders)
        self._lacking_us: dict[str, int] = {}
        self._silent_us: dict[str, int] = {}

    async def view(self) -> GroupView:
        """Return the present view of the group, with all servers of the masters. Raises NotFound."""
        await self.directory.learn()
        return await view(self.directory, self.tablet)

    async def find(self, name: str) -> tuple[ClusterServer, GroupView]:
        """Return a server and the group. Raises NotFound."""
        group = await self.view()
        return self.directory.find(name, group), group

    async def run_steps(self, decide: Decide) -> GroupView:
        """Execute steps until `decide` returns None; return the view of the group then.

        Raises:
            TimedOut: no progress for `timeout_ms`. NyalaError: a step was refused.
        """
        clock, tasks = self.core.env.clock, self.core.env.tasks
        notified = answer = ""
        seen: object = None
        since_us = 0
        while True:
            group = await view(self.directory, self.tablet)
            now_us = clock.monotonic_us()
            if (state := _state(group)) != seen:
                seen, since_us = state, now_us
            step = decide(group)
            if step is None:
                return group
            if now_us - since_us > self.timeout_ms * 1000:
                last = f"; the last answer: {answer}" if answer else ""
                raise TimedOut(
                    f"no progress for {self.timeout_ms / 1000:g} s. The step was: {step.words}{last}. "
                    "Run the command again to continue"
                )
            if step.words != notified:
                self.notify(step.words)
                notified, answer = step.words, ""
            if step.act is not None:
                try:
                    await step.act()
                except (Retryable, OutcomeUnknown, CasFailed) as err:
                    answer = err.message  # its effect is in the next view
                else:
                    self.done.append(step.words)
                    continue
            await tasks.sleep_ms(POLL_MS)

    async def add(self, name: str, kind: MemberKind = MemberKind.VOTER) -> GroupView:
        """Make a server a member with all data; it is one on return. Idempotent.

        Args:
            name: uuid or address of the server.
            kind: wanted kind of member.

        Raises:
            NotFound: unknown tablet or server. Forbidden: the server belongs to another cluster.
            InvalidArgument: it cannot become that. Unavailable: it does not answer.
            TimedOut: no progress for `timeout_ms`.
        """
        server, group = await self.find(name)
        await self.directory.check(server)
        check(group, server, kind)
        return await self._execute(server, partial(self.steps.next_step, server, kind))

    async def change_type(self, name: str, kind: MemberKind) -> GroupView:
        """Change the kind of a member. Raises as `add`, and InvalidArgument if it is no member."""
        server, group = await self.find(name)
        if group.config is not None and group.member(server) is None:
            raise InvalidArgument(f"{server} is no member of {self.tablet}: add_replica adds it")
        check(group, server, kind)
        return await self._execute(server, partial(self.steps.next_step, server, kind))

    async def remove(self, name: str) -> GroupView:
        """Remove a member and its data; a tombstone keeps its vote. Raises as `add`.

        The data of a server that does not answer are deleted when it runs again.
        """
        server, _ = await self.find(name)
        return await self._leaving(server)

    async def move(self, old: str, new: str) -> GroupView:
        """Move a voter from `old` to `new`: add, wait for promotion, remove.

        Raises:
            InvalidArgument: neither of them is a member, or both are voters. Otherwise as `add`.
        """
        leaving, group = await self.find(old)
        coming = self.directory.find(new, group)
        if leaving == coming:
            raise InvalidArgument(f"the replica is on {leaving} already; move it to another server")
        if group.member(leaving) is None and group.member(coming) is None:
            raise InvalidArgument(
                f"neither {leaving} nor {coming} is a member of {self.tablet}: there is nothing to move"
            )
        if group.member(leaving) is not None:
            await self.directory.check(coming)
            check(group, coming, MemberKind.VOTER)
            await self._execute(coming, partial(self.steps.replacing, leaving, coming))
        return await self._leaving(leaving)

    async def step_down(self, to: str = "") -> GroupView:
        """Transfer leadership to the replica named, or to the most up-to-date one. Raises as `add`."""
        group = await self.view()
        successor = self.directory.find(to, group) if to else None
        config, before = group.config, group.leader
        if successor and config is not None and not config.may_lead(successor.uuid):
            raise InvalidArgument(
                f"{successor} is no voter of {self.tablet} that may lead; choose one: nyala tablet members "
                f"{self.tablet}"
            )

        def decide(group: GroupView) -> MemberStep | None:
            nonlocal before
            if successor is not None:
                self._check_answers(successor, group)
            leader = group.leader
            before = before or leader
            if leader is None:
                return MemberStep("wait for a leader")
            if leader == successor or (successor is None and leader != before):
                return None
            return self.steps.transfer_step(leader, successor)

        return await self.run_steps(decide)

    # ---- replicas that cannot be brought up to date -------------------------------------------------

    async def _execute(self, server: ClusterServer, decide: Decide) -> GroupView:
        """Execute steps; delete a replica first that the group's logs can no longer bring up to date.

        Raises:
            Unavailable: the server did not answer for `LOST_MS`.
        """
        self._orders.begin()

        def decided(group: GroupView) -> MemberStep | None:
            step = decide(group)
            if step is not None:
                self._check_answers(server, group)
            if step is None or step.act is not None or not self._lacks(server, group):
                return step
            return self.steps.deleting(server, group)

        return await self.run_steps(decided)

    async def _leaving(self, server: ClusterServer) -> GroupView:
        """Execute steps; a server counts as dead only after `SILENT_MS`."""

        def decided(group: GroupView) -> MemberStep | None:
            step = self.steps.leaving(server, group)
            if step is not None or self._is_silent(server, group, SILENT_MS):
                return step
            silent = group.of(server).silent
            return MemberStep(f"wait for {server}: {silent}") if silent else None

        return await self.run_steps(decided)

    def _check_answers(self, server: ClusterServer, group: GroupView) -> None:
        """Check that a server that is to get a replica or to lead answered in the last `LOST_MS`.

        Raises:
            Unavailable: it did not.
        """
        if self._is_silent(server, group, LOST_MS):
            raise Unavailable(
                f"{server} has not answered for {LOST_MS // 1000} s: {group.of(server).silent}. Start it, "
                "and run the command again to continue, or choose another server"
            )

    def _is_silent(self, server: ClusterServer, group: GroupView, ms: int) -> bool:
        """Return whether a server has not answered for `ms`."""
        if not group.of(server).silent:
            self._silent_us.pop(server.uuid, None)
            return False
        return self._has_lasted(self._silent_us, server, ms)

    def _has_lasted(self, since_us: dict[str, int], server: ClusterServer, ms: int) -> bool:
        """Return whether a condition of a server has held for `ms`."""
        now_us = self.core.env.clock.monotonic_us()
        return now_us - since_us.setdefault(server.uuid, now_us) >= ms * 1000

    def _lacks(self, server: ClusterServer, group: GroupView) -> bool:
        """Return whether a non-voter's data are too old for its leader's log, for `LACKING_MS`."""
        member, peer = group.member(server), group.peer(server)
        lacks = peer is not None and peer.needs_copy and group.of(server).has_data
        if not lacks or member is None or member.voter:
            self._lacking_us.pop(server.uuid, None)
            return False
        return self._has_lasted(self._lacking_us, server, LACKING_MS)


def _state(group: GroupView) -> object:
    """Return a value that changes with every progress of the group."""
    status, config = group.status, group.config
    coming = () if config is None else config.promoting
    peers = [] if status is None else [(p.uuid, p.match) for p in status.peers if p.uuid in coming]
    responsive = [
        (
            uuid,
            r.state,
            r.silent == "",
            r.copy and (r.copy.stage, r.copy.bytes_done, r.copy.log_bytes),
        )
        for uuid, r in group.replicas.items()
    ]
    return (group.leader, config, group.changing, peers, responsive)
