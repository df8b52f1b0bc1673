"""Drives a tablet's group to where it is wanted, one safe step after the other.

Each step is decided on a fresh view of the group, and asks for one thing with a compare-and-set, so that a
command that was killed, met a crash, or lost an answer is simply run again: it goes on, or finds all done.
"""

from collections.abc import Callable

from nyala.client.core import Core
from nyala.common.errors import CasFailed, OutcomeUnknown, Retryable, TimedOut
from nyala.operate.group_view import Cluster, Group, Server
from nyala.operate.member_steps import Step

POLL_MS = 100
Decide = Callable[[Group], Step | None]
"""Returns the next step in a group; None: what was wanted is so."""


class Driver:
    """One tablet, and the servers of its cluster. On the client's loop.

    Args:
        core: a client of the cluster.
        tablet: its id.
        tell: is told each step before it is done.
        patience_ms: for how long nothing at all may happen before it gives up.
        cluster: the servers that may have replicas; None: all tablet servers.

    Attributes:
        done: the steps taken.
        cluster: its servers.
    """

    def __init__(
        self,
        core: Core,
        tablet: str,
        tell: Callable[[str], None],
        patience_ms: int,
        cluster: Cluster | None = None,
    ) -> None:
        self.core = core
        self.tablet = tablet
        self.tell = tell
        self.patience_ms = patience_ms
        self.done: list[str] = []
        self.cluster = cluster or Cluster(core)

    async def look(self) -> Group:
        """Return the group as it is, with all servers that the masters know now. Raises NotFound."""
        await self.cluster.learn()
        return await self.cluster.look(self.tablet)

    async def find(self, name: str) -> tuple[Server, Group]:
        """Return a server and the group. Raises NotFound."""
        group = await self.look()
        return self.cluster.find(name, group), group

    async def drive(self, decide: Decide) -> Group:
        """Take steps until nothing is left to do; return the group as it is then.

        Raises:
            TimedOut: nothing went on for `patience_ms`. NyalaError: a step was refused for good.
        """
        clock, tasks = self.core.env.clock, self.core.env.tasks
        said = answer = ""
        seen: object = None
        since_us = 0
        while True:
            group = await self.cluster.look(self.tablet)
            now_us = clock.monotonic_us()
            if (state := _state(group)) != seen:
                seen, since_us = state, now_us
            step = decide(group)
            if step is None:
                return group
            if now_us - since_us > self.patience_ms * 1000:
                last = f"; the last answer: {answer}" if answer else ""
                raise TimedOut(
                    f"nothing went on for {self.patience_ms / 1000:g} s. The step was: {step.words}{last}. "
                    "Run the command again to go on"
                )
            if step.words != said:
                self.tell(step.words)
                said = step.words
            if step.act is not None:
                try:
                    await step.act()
                except (Retryable, OutcomeUnknown, CasFailed) as err:
                    answer = err.message  # what came of it the next look tells
                else:
                    self.done.append(step.words)
                    continue
            await tasks.sleep_ms(POLL_MS)


def _state(group: Group) -> object:
    """Return what differs when something went on."""
    status, config = group.status, group.config
    coming = () if config is None else config.promoting
    peers = [] if status is None else [(p.uuid, p.match) for p in status.peers if p.uuid in coming]
    heard = [
        (
            uuid,
            r.state,
            r.silent == "",
            r.copy and (r.copy.stage, r.copy.bytes_done, r.copy.log_bytes),
        )
        for uuid, r in group.replicas.items()
    ]
    return (group.leader, config, group.changing, peers, heard)
