"""Checksums of replicas at one time: each replica computes its own, and the client compares them.

The leader chooses the time; the other replicas wait until they have reached it. A server computes one
checksum at a time, batch by batch in lane COMPUTE, so that reads can run in between; it stops if the caller
disconnects.
"""

import asyncio

from nyala.common.errors import Corrupt, InvalidArgument, NotLeader, TimedOut, Unavailable
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.server_clock import duration
from nyala.env.tasks import Lane
from nyala.machines import registry
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.replica.witness import Witness
from nyala.tablet.read.checksum import MODULO
from nyala.tserver.tablets import Hosted, Tablets
from nyala.wire import methods
from nyala.wire.proto import reads_pb2 as pb

POLL_INTERVAL_MS = 20
ANY_AGE_MS = 1 << 62
MAX_TIMEOUT_MS = 24 * 3_600_000


class Checksums:
    """Handler of `TabletReads.Checksum`. Used on the event loop only.

    Args:
        env: lanes and timers.
        tablets: tablets of this server.
        options: default deadline, and size of batches.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._options = options
        self._one_at_a_time = asyncio.Semaphore(1)

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.CHECKSUM: self.checksum}

    async def checksum(self, request: pb.ChecksumRequest) -> pb.ChecksumResponse:
        """Compute the checksum of a replica; `at` = 0: the current time, from the leader only.

        Raises:
            NotLeader: `at` is 0, and another replica leads.
            TimedOut: the replica did not reach `at`, or the checksum was not computed, in time.
            HistoryGone: `at` is before the history that is kept here.
            InvalidArgument: the deadline is too long, or `at` is further in the future than
                `clock_max_ahead_ms`.
            Unavailable: there is no such replica here, or it is FAILED.
        """
        timeout_ms = request.timeout_ms or self._options.read_timeout_ms
        if timeout_ms > MAX_TIMEOUT_MS:
            raise InvalidArgument(
                f"a deadline of {timeout_ms} ms is over the limit of {MAX_TIMEOUT_MS} ms; set a shorter one"
            )
        replica = self._tablets.host.find(TabletId(request.tablet_id))
        known = replica is not None and replica.state is not State.TOMBSTONED
        if replica is not None and known and isinstance(replica.machine, Witness):
            return pb.ChecksumResponse(witness=True)
        hosted = self._tablets.hosted(request.tablet_id)
        _check_ahead(hosted.replica, request.at)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                at = await self._wait_applied(hosted.replica, request.at, timeout_ms)
                async with self._one_at_a_time:
                    return await self._sum(hosted, at)
        except TimeoutError as err:
            raise TimedOut(
                f"the checksum of tablet {request.tablet_id} on this server was not computed in "
                f"{timeout_ms} ms; "
                "retry with a longer timeout, or when the server is less busy"
            ) from err

    async def _wait_applied(self, replica: Replica, at: int, timeout_ms: int) -> int:
        """Wait until everything at or below a time is applied here, and return the time."""
        if not at:
            return await replica.read_point(None, timeout_ms)
        while True:
            try:
                reached, _ = await replica.stale_point(ANY_AGE_MS, timeout_ms, min_time=at)
            except NotLeader:  # its closed time is still older
                reached = 0
            if reached >= at:
                return at
            await self._env.tasks.sleep_ms(POLL_INTERVAL_MS)

    async def _sum(self, hosted: Hosted, at: int) -> pb.ChecksumResponse:
        rows, size = self._options.scan_batch_rows, self._options.scan_batch_bytes
        kind = registry.kind_of_machine(hosted.machine)
        content = kind.checksum(hosted.machine, at, rows, size)
        answer = pb.ChecksumResponse(at=at, schema_version=content.version)

        def step() -> tuple[int, int] | None:
            return next(content.parts, None)

        try:
            while (found := await self._env.tasks.run(Lane.COMPUTE, step)) is not None:
                answer.rows += found[0]
                answer.checksum = (answer.checksum + found[1]) % MODULO
        except Corrupt as err:
            hosted.replica.fail(err)
            raise Unavailable(
                f"the replica of tablet {hosted.replica.group} here is FAILED: {err.message}"
            ) from err
        return answer


def _check_ahead(replica: Replica, at: int) -> None:
    """Refuse a time that reads would not wait for either.

    Raises:
        InvalidArgument: it is further in the future than `clock_max_ahead_ms`.
    """
    clock = replica.context.clock
    ahead_us = clock.ahead_us(at)
    if ahead_us > clock.limit_us and at > clock.peek():
        raise InvalidArgument(
            f"the time {at} is {duration(ahead_us)} ahead of this server's clock; a checksum waits for at "
            f"most clock_max_ahead_ms ({clock.limit_us // 1000}). Give an earlier time, or 0 at the leader "
            "for now; if the time is another server's, synchronise the servers' clocks with NTP"
        )
