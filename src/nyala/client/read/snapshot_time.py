"""The time of a snapshot: at or above the stamp of every write acknowledged before it was asked for."""

import asyncio
from collections.abc import Callable, Collection

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.deadline import SHORT_TRY_MS, Attempts
from nyala.common.errors import NyalaError, Retryable, Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_TIMEOUT_MS = 2_000
MAX_SPREAD_US = 1_000_000
"""Largest plausible difference of times of one group, in microseconds; beyond it all its servers are awaited.
"""


class Times:
    """Choice of hybrid times from the servers' clocks. Runs on the client's loop."""

    def __init__(self, env: Env, locations: TabletCache, clock: HybridClock) -> None:
        self._env = env
        self._locations = locations
        self._clock = clock

    async def time_of(
        self, addresses: dict[str, None], groups: list[list[str]], timeout_ms: int
    ) -> int:
        """Return a time at or above the stamp of every write acknowledged before this call.

        For a group it is the smallest time that the clocks of a majority of its replicas do not exceed (of
        three answers, the middle one); of several groups the largest counts. An acknowledged write is durable
        on a majority of its group, whose clocks are at or above its stamp, and any two majorities share a
        server. One wrong clock cannot raise the time.

        Args:
            addresses: the servers to ask.
            groups: for each group the addresses of its voters; a majority of each must answer.
            timeout_ms: deadline, from now.

        Raises:
            Unavailable: no majority of some group answers.
        """
        attempts = Attempts(self._env, timeout_ms)

        def enough(replies: dict[str, int]) -> bool:
            return all(_settled(g, replies) for g in groups)

        silent: list[str] | None = None  # at the last try that had time for an answer
        while True:
            given_ms = min(ASK_TIMEOUT_MS, attempts.left_ms())
            replies = await self.ask(addresses, enough, given_ms)
            times = [_reached(g, replies) for g in groups]
            found = [t for t in times if t is not None]
            if len(found) == len(times):
                self._clock.merge(max(found, default=0))
                return self._clock.seen
            if silent is None or given_ms >= SHORT_TRY_MS:
                silent = [a for a in addresses if a not in replies]
            if not await attempts.pause():
                raise Unavailable(
                    f"no majority of some tablet's replicas answers; silent: {', '.join(silent)}. "
                    "Check: nyala cluster ksck"
                )

    async def ask(
        self,
        addresses: dict[str, None],
        enough: Callable[[dict[str, int]], bool],
        timeout_ms: int,
    ) -> dict[str, int]:
        """Return the times of the servers that answered.

        Args:
            addresses: the servers to ask.
            enough: returns whether the answers so far suffice.
            timeout_ms: for each.
        """
        replies: dict[str, int] = {}
        answers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

        async def ask(address: str) -> None:
            time = 0
            try:
                info: pb.ServerInfoResponse = await self._env.rpc.call(
                    address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=timeout_ms
                )
                time = info.hybrid_time
            except NyalaError:
                pass
            finally:  # also when the client is closed, which cancels this task
                answers.put_nowait((address, time))

        tasks = [self._env.tasks.spawn(ask(a), f"time of {a}") for a in addresses]
        try:
            for _ in tasks:
                address, time = await answers.get()
                if time:
                    replies[address] = time
                if enough(replies):
                    break
        finally:
            for task in tasks:
                task.cancel()
        return replies

    async def snapshot(self, table: OpenTable, timeout_ms: int) -> int:
        """Return a time that includes every write to the table acknowledged before this call."""
        attempts = Attempts(self._env, timeout_ms)
        known: Retryable | None = None
        while True:
            groups = [t.majority_of() for t in table.with_rows()]
            addresses = dict.fromkeys(a for g in groups for a in g)
            try:
                with attempts.keeping(known):
                    return await self.time_of(addresses, groups, min(3_000, attempts.left_ms()))
            except Retryable as err:
                known = err
                if not await attempts.pause():
                    raise
            with attempts.keeping(known):
                await self._locations.refresh_shared(table, max(1, attempts.left_ms()))


def near(times: Collection[int]) -> bool:
    """Return whether hybrid times differ so little that no clock is suspect."""
    return to_micros(max(times)) - to_micros(min(times)) <= MAX_SPREAD_US


def _reached(group: list[str], replies: dict[str, int]) -> int | None:
    """Return the smallest time that a majority of a group does not exceed; None: too few answered."""
    times = sorted(replies[a] for a in group if a in replies)
    majority = len(group) // 2 + 1
    return times[majority - 1] if len(times) >= majority else None


def _settled(group: list[str], replies: dict[str, int]) -> bool:
    """Return whether a group's time is final: all have answered, or no clock among them is far ahead."""
    reached = _reached(group, replies)
    if reached is None:
        return False
    times = [replies[a] for a in group if a in replies]
    return len(times) == len(group) or to_micros(reached) - to_micros(min(times)) <= MAX_SPREAD_US
