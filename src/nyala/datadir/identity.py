"""Identity of a server process: the instance of its data directory, its hybrid clock, its incarnation."""

from collections.abc import Sequence
from functools import partial

from nyala.common.errors import Corrupt, InvalidArgument, Unavailable
from nyala.common.ids import ServerUuid
from nyala.datadir import instance
from nyala.datadir.instance import Instance
from nyala.env.disciplined_clock import LATEST_US, DisciplinedClock
from nyala.env.env import Env
from nyala.env.files import Files
from nyala.env.server_clock import ServerClock
from nyala.env.tasks import Lane

CLOCK_FILE = "hybrid_clock"
YEAR_US = 31_556_952_000_000


def check_ceiling(files: Files, directory: str) -> None:
    """Check that the ceiling of the hybrid clock is not lost; it is durable before any replica or log is.

    Args:
        files: the file system.
        directory: the data directory.

    Raises:
        Corrupt: there is a log or a replica, and no ceiling.
    """
    path = f"{directory}/{CLOCK_FILE}"
    if not files.exists(path) and any(
        files.list(f"{directory}/{d}") for d in ("superblock", "wal")
    ):
        raise Corrupt(
            f"{path} is missing: without the ceiling of the hybrid clock this server could assign a "
            "timestamp twice, so its replicas have to be replaced"
        )


def check_time(now_us: int) -> None:
    """Check that timestamps can be made of a server's time, in microseconds since the epoch.

    Raises:
        InvalidArgument: it is too late.
    """
    if now_us > LATEST_US:
        raise InvalidArgument(
            f"this server's time is in the year {1970 + now_us // YEAR_US}, and timestamps end in 2041: set "
            "the machine's clock, and start it again; if the clock is right, the ceiling of the hybrid "
            "clock is too high: nyala fs lower_clock"
        )


class Identity:
    """The identity of one server process; known once opened. On the loop only.

    Args:
        env: the environment: clock, tasks, files, calls.
        directory: the data directory.
        role: "master" or "tserver".
        clock_max_ahead_ms: largest offset of other servers' times into the future.

    Attributes:
        physical: physical time of this server, before it is opened too.
        incarnation: hybrid time of this start.
    """

    def __init__(self, env: Env, directory: str, role: str, clock_max_ahead_ms: int) -> None:
        self._env = env
        self._directory = directory
        self._role = role
        self._instance: Instance | None = None
        self._clock: ServerClock | None = None
        self.physical = DisciplinedClock(env.clock, clock_max_ahead_ms)
        self.incarnation = 0

    def open(self) -> ServerClock:
        """Lock and open, or format, the data directory; durable on return.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory cannot be this server's.
            InvalidArgument: no timestamp can be made of the time of this machine.
        """
        env, directory = self._env, self._directory
        self._instance = instance.open_instance(env.files, directory, self._role, env.random)
        check_ceiling(env.files, directory)
        self._clock = ServerClock(self.physical, env.files, f"{directory}/{CLOCK_FILE}")
        check_time(self.physical.wall_us())
        self.incarnation = self._clock.now()
        return self._clock

    @property
    def known(self) -> bool:
        """True if the data directory is open."""
        return self._instance is not None

    @property
    def instance(self) -> Instance:
        """Content of the `instance` file.

        Raises:
            Unavailable: it is not open yet.
        """
        if self._instance is None:
            raise Unavailable("this server is starting; retry")
        return self._instance

    @property
    def uuid(self) -> ServerUuid:
        """The server's permanent id. Raises as `instance`."""
        return self.instance.uuid

    @property
    def clock(self) -> ServerClock:
        """The server's hybrid clock. Raises as `instance`."""
        if self._clock is None:
            raise Unavailable("this server is starting; retry")
        return self._clock

    async def learn(
        self,
        *,
        cluster_id: str | None = None,
        initialised: bool = False,
        masters: Sequence[str] = (),
    ) -> None:
        """Save cluster id, masters or the completed first start in the data directory; durable on return.

        Args:
            cluster_id: see `instance.update`, as the others.
            initialised: the first start is completed.
            masters: public addresses of all masters.

        Raises:
            InvalidArgument: the directory belongs to another cluster. OSError: it was not written.
        """
        work = partial(self._update, cluster_id, initialised, masters)
        await self._env.tasks.run(Lane.DISK, work)

    def _update(self, cluster_id: str | None, initialised: bool, masters: Sequence[str]) -> None:
        """Update the file. Runs in lane DISK, so that each call reads the result of the one before."""
        self._instance = instance.update(
            self._env.files,
            self._directory,
            self.instance,
            cluster_id=cluster_id,
            initialised=initialised,
            masters=masters,
        )
