"""Identity of a server process: the instance of its data directory, its hybrid clock, its incarnation."""

from collections.abc import Sequence
from functools import partial

from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid
from nyala.datadir import instance
from nyala.datadir.instance import Instance
from nyala.env.env import Env
from nyala.env.server_clock import ServerClock
from nyala.env.tasks import Lane

CLOCK_FILE = "hybrid_clock"


class Identity:
    """The identity of one server process; known once opened. On the loop only.

    Args:
        env: the environment: clock, tasks, files, calls.
        directory: the data directory.
        role: "master" or "tserver".
        clock_max_ahead_ms: largest offset of other servers' times into the future.
    """

    def __init__(self, env: Env, directory: str, role: str, clock_max_ahead_ms: int) -> None:
        self._env = env
        self._directory = directory
        self._role = role
        self._clock_max_ahead_ms = clock_max_ahead_ms
        self._instance: Instance | None = None
        self._clock: ServerClock | None = None
        self.incarnation = 0

    def open(self) -> ServerClock:
        """Lock and open, or format, the data directory; durable on return.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory cannot be this server's.
        """
        env, directory = self._env, self._directory
        self._instance = instance.open_instance(env.files, directory, self._role, env.random)
        self._clock = ServerClock(
            env.clock, env.files, f"{directory}/{CLOCK_FILE}", self._clock_max_ahead_ms
        )
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
