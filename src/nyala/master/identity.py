"""Who this master is: its data directory's instance, its clock, and how it registers with others."""

from nyala.common.errors import Unavailable
from nyala.common.version import PROTOCOL_VERSION, VERSION
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.master.config import MasterConfig
from nyala.replica import instance
from nyala.replica.instance import Instance
from nyala.wire.proto import nyala_pb2 as pb

CLOCK_FILE = "hybrid_clock"


class Identity:
    """The identity of one master process; known once opened. On the loop only.

    Args:
        env: the outside world.
        config: addresses and data directory.
    """

    def __init__(self, env: Env, config: MasterConfig) -> None:
        self._env = env
        self._config = config
        self._instance: Instance | None = None
        self._clock: HybridClock | None = None
        self._incarnation = 0

    def open(self) -> HybridClock:
        """Lock and open, or format, the data directory; durable on return.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory cannot be this master's.
        """
        env, directory = self._env, self._config.dir
        self._instance = instance.open_instance(env.files, directory, "master", env.random)
        self._clock = HybridClock(env.clock, env.files, f"{directory}/{CLOCK_FILE}")
        self._incarnation = self._clock.now()
        return self._clock

    @property
    def known(self) -> bool:
        """Whether the data directory is open."""
        return self._instance is not None

    @property
    def instance(self) -> Instance:
        """What the data directory says.

        Raises:
            Unavailable: it is not open yet.
        """
        if self._instance is None:
            raise Unavailable("this master is starting; ask again")
        return self._instance

    def learn(self, *, cluster_id: str | None = None, initialised: bool = False) -> None:
        """Write into the data directory what was learned; durable on return.

        Raises:
            InvalidArgument: the directory belongs to another cluster.
        """
        self._instance = instance.update(
            self._env.files,
            self._config.dir,
            self.instance,
            cluster_id=cluster_id,
            initialised=initialised,
        )

    def info(self) -> pb.ServerInfoResponse:
        """Return this server's registration.

        Raises:
            Unavailable: the data directory is not open yet.
        """
        config, opened = self._config, self.instance
        assert self._clock is not None, "opened with its clock"
        return pb.ServerInfoResponse(
            uuid=opened.uuid,
            role="master",
            cluster_id=opened.cluster_id,
            address=config.address,
            peer_address=config.peer_address,
            web_address=config.web_address,
            version=VERSION,
            protocol_version=PROTOCOL_VERSION,
            format_version=instance.FORMAT_VERSION,
            hybrid_time=self._clock.peek(),
            incarnation=self._incarnation,
        )
