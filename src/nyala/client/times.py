"""The time of a snapshot: at or above the stamp of every write acknowledged before it was asked for."""

import asyncio

from nyala.client.locations import Locations, OpenTable
from nyala.client.retrying import Attempts
from nyala.common.errors import NyalaError, Retryable, Unavailable
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_TIMEOUT_MS = 2_000


class Times:
    """Asks servers for their hybrid times. Runs on the client's loop."""

    def __init__(self, env: Env, locations: Locations, clock: HybridClock) -> None:
        self._env = env
        self._locations = locations
        self._clock = clock

    async def time_of(
        self, addresses: dict[str, None], groups: list[list[str]], timeout_ms: int
    ) -> int:
        """Return a time at or above the stamp of every write acknowledged before this call.

        An acknowledged write is durable on a majority of its group, and each of those servers' clocks
        has passed its stamp; so the largest time among a majority of each group is enough.

        Args:
            addresses: the servers to ask.
            groups: for each group the addresses of its replicas; a majority of each must answer.
            timeout_ms: for the whole.

        Raises:
            Unavailable: some group has no majority within reach.
        """
        attempts = Attempts(self._env, timeout_ms)
        while True:
            heard = await self.ask(addresses, groups, min(ASK_TIMEOUT_MS, attempts.left_ms()))
            if all(_majority(g, heard) for g in groups):
                return self._clock.seen
            if not await attempts.pause():
                silent = [a for a in addresses if a not in heard]
                raise Unavailable(
                    f"no majority of some tablet's replicas answers; silent: {', '.join(silent)}. "
                    "Check: nyala cluster ksck"
                )

    async def ask(
        self, addresses: dict[str, None], groups: list[list[str]], timeout_ms: int
    ) -> dict[str, int]:
        """Return the times of the servers that answered, merged into the client's clock.

        Stops early once a majority of each group has answered; without groups it waits for all.
        """
        heard: dict[str, int] = {}
        answers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

        async def ask(address: str) -> None:
            try:
                info: pb.ServerInfoResponse = await self._env.rpc.call(
                    address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=timeout_ms
                )
                answers.put_nowait((address, info.hybrid_time))
            except NyalaError:
                answers.put_nowait((address, 0))

        tasks = [self._env.tasks.spawn(ask(a), f"time of {a}") for a in addresses]
        try:
            for _ in tasks:
                address, time = await answers.get()
                if time:
                    heard[address] = time
                    self._clock.merge(time)
                if groups and all(_majority(g, heard) for g in groups):
                    break
        finally:
            for task in tasks:
                task.cancel()
        return heard

    async def snapshot(self, table: OpenTable, timeout_ms: int) -> int:
        """Return a time that includes every write to the table acknowledged before this call."""
        attempts = Attempts(self._env, timeout_ms)
        while True:
            groups = [[a for _, a in t.replicas if a] for t in table.with_rows()]
            addresses = dict.fromkeys(a for g in groups for a in g)
            try:
                return await self.time_of(addresses, groups, min(3_000, attempts.left_ms()))
            except Retryable:
                if not await attempts.pause():
                    raise
                await self._locations.refresh(table, max(1, attempts.left_ms()))


def _majority(group: list[str], heard: dict[str, int]) -> bool:
    return 2 * sum(a in heard for a in group) > len(group)
