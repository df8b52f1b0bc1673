"""What a request to a member stands on: its leadership, a new stamp, room in its queues.

Rules: on the loop only. A stamp is taken in the loop step that assigns its index.
"""

from nyala.common.errors import NotLeader, Throttled, TimedOut, TooLarge, Unavailable
from nyala.common.ids import ServerUuid
from nyala.common.options import ENTRY_SLACK_BYTES
from nyala.env.server_clock import duration
from nyala.raft.membership import Configuration
from nyala.raft.node import RaftNode
from nyala.replica.context import Around
from nyala.replica.member.driver import Driver
from nyala.replica.member.leadership_watch import Standing

RETRY_AFTER_MS = 20
LOOK_MS = 50
"""How often a request that waits for a time looks at the clock: others may move it."""


class Footing:
    """What requests to one member ask of it first.

    Args:
        around: the process.
        node: its core.
        driver: knows whether the log takes more, and the configuration.
        standing: knows whether the core accepts writes.
    """

    def __init__(self, around: Around, node: RaftNode, driver: Driver, standing: Standing) -> None:
        self._around = around
        self._node = node
        self._driver = driver
        self._standing = standing
        self._closed = False

    async def accepting(self, deadline_us: int, above: int = 0) -> None:
        """Wait until an entry of the leader's own term is applied (S4.38).

        What is checked before a proposal - schema, sessions, the catalog - is then checked against a state
        that has everything earlier leaders committed.

        Args:
            deadline_us: when to give up.
            above: also until a stamp above it, and above the log's last, can be given.

        Raises:
            NotLeader: it does not lead. Unavailable: not in time, or the clock's ceiling cannot be saved.
        """
        standing, clock = self._standing, self._around.env.clock
        while True:
            while not standing.accepting:
                if not self._node.is_leader or self._closed:
                    raise self.not_leader()
                if clock.monotonic_us() >= deadline_us:
                    raise Unavailable(
                        "this leader has not applied an entry of its term yet; ask again"
                    )
                await standing.next_change()
            if self._around.clock.merge(max(above, self._node.last_stamp)):
                return
            await self.past(max(above, self._node.last_stamp))

    async def reached(self, time: int, deadline_us: int) -> None:
        """Wait until this server's clock has reached a time that a client carries: it moves no clock.

        Raises:
            TimedOut: it does not before the deadline; nothing was done.
        """
        clock, env = self._around.clock, self._around.env
        while time > clock.peek() and (ahead_us := clock.ahead_us(time)) > 0:
            if env.clock.monotonic_us() + ahead_us > deadline_us:
                raise TimedOut(
                    f"the time {time} lies {duration(ahead_us)} in the future of this server, and the "
                    "deadline is earlier; nothing was done. Give an earlier time, or a later deadline"
                )
            await env.tasks.sleep_ms(min(-(-ahead_us // 1000), LOOK_MS))

    async def past(self, stamp: int) -> None:
        """Move the clock past a stamp, waiting for the disk where that has to be durable first.

        Raises:
            Unavailable: it cannot be made durable; nothing was proposed or promised.
        """
        try:
            await self._around.clock.past(stamp)
        except OSError as err:
            raise Unavailable(
                f"the hybrid clock's ceiling cannot be made durable: {err}; make room on the disk"
            ) from err

    def stamp(self, above: int) -> int:
        """Return a new stamp, above `above` and all before it.

        Raises:
            Unavailable: the clock's ceiling is not durable so far up; `past` or `accepting` waits for it.
        """
        self.merge(above)
        return self._around.clock.now()

    def merge(self, stamp: int) -> None:
        """Move the clock past a stamp. Raises as `stamp`."""
        if not self._around.clock.merge(stamp):
            raise Unavailable(
                f"the hybrid clock cannot pass {stamp} before its ceiling is durable there; ask again"
            )

    def check_room(self, size_bytes: int, inflight: int) -> None:
        """Refuse an operation that is too large, or for which the log has no room beside those in flight."""
        options = self._around.options
        limit = max(options.write_max_bytes, options.catalog_batch_bytes) + ENTRY_SLACK_BYTES
        if size_bytes > limit:
            raise TooLarge(
                f"the operation has {size_bytes} bytes; at most {limit} are replicated at one go: send less "
                "at a time, or raise write_max_bytes on all servers",
                {"limit": str(limit), "size": str(size_bytes)},
            )
        self._around.memory.check()
        full = inflight and inflight + size_bytes > options.write_queue_bytes
        if full or self._driver.stalled:
            self._around.counters.throttled.inc()
            raise Throttled(
                "the log's queue or its disk is full; wait and send again"
                if self._driver.stalled
                else f"{inflight} bytes of writes are in flight on this tablet; wait and send again",
                {"retry_after_ms": str(RETRY_AFTER_MS)},
            )

    def not_leader(self) -> NotLeader:
        """Return the error that names the leader as far as it is known."""
        return _not_leader(self._around, self._node.leader, self._driver.config)


def _not_leader(around: Around, leader: ServerUuid | None, config: Configuration) -> NotLeader:
    if leader is None or leader == around.uuid:
        return NotLeader("this replica does not lead its group, and no leader is known; ask again")
    member = config.get(leader)
    details = {"leader": str(leader)}
    if member is not None:
        details["address"] = member.address
    where = "" if member is None else f" at {member.address}"
    return NotLeader(f"this replica does not lead its group; {leader}{where} does", details)


def with_address(err: NotLeader, config: Configuration) -> NotLeader:
    """Return the error with the address of the leader that it names."""
    member = None if err.leader is None else config.get(ServerUuid(err.leader))
    address = {} if member is None else {"address": member.address}
    return NotLeader(err.message, {**err.details, **address})
