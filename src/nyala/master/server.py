"""Master: puts the process together, and joins the masters' group at its first start.

It creates no sockets: the caller serves `handlers()` on the public port, from before or after `start()`,
and gives the transport of the peer port. Fresh masters wait in the background until all have answered.
"""

import logging

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.master.config import MasterConfig
from nyala.master.flights import FlightService
from nyala.master.group import Group
from nyala.master.heartbeats import HeartbeatService, Standing
from nyala.master.leading import Leading
from nyala.master.peers import MasterPeers
from nyala.master.service import MasterService, Parts
from nyala.master.settings import Settings
from nyala.master.tservers import TServers
from nyala.raft.membership import Configuration
from nyala.raft.status import Role
from nyala.replica import instance
from nyala.replica.instance import Instance
from nyala.replica.state_machine import Transport
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
CLOCK_FILE = "hybrid_clock"


class Master:
    """One master. On the loop that owns `env.tasks`.

    Args:
        env: the outside world.
        config: addresses, data directory, options.
        transport: carries Raft's messages on the peer port.

    Raises:
        InvalidArgument: `config.address` is not among `config.master_addresses`, or one is named twice.
    """

    def __init__(self, env: Env, config: MasterConfig, transport: Transport) -> None:
        addresses = config.master_addresses or (config.address,)
        if config.address not in addresses or len(set(addresses)) != len(addresses):
            raise InvalidArgument(
                f"the masters are {', '.join(addresses)}; name each once, this one ({config.address}) "
                "among them"
            )
        self._env = env
        self._config = config
        self._transport = transport
        self._addresses = addresses
        self._settings = Settings.of(config.options)
        self._instance: Instance | None = None
        self._clock: HybridClock | None = None
        self._incarnation = 0
        self._group: Group | None = None
        self._leading: Leading | None = None
        self._failure: NyalaError | None = None
        self._cluster: cat.ClusterRecord | None = None
        settings = self._settings
        self._servers = TServers(settings.unresponsive_us)
        self._peers = MasterPeers(
            env, self.info, addresses, settings.heartbeat_ms, settings.unresponsive_us
        )
        self._parts = Parts(
            env,
            self._servers,
            self._peers,
            lambda: self._leading,
            self._why_waiting,
            self.info,
            self.status,
        )
        self._service = MasterService(self._parts, settings.service)
        self._heartbeats = HeartbeatService(
            env, self._servers, lambda: self._leading, self.standing, settings.report_batch
        )
        self._flights = FlightService(self._parts, settings.timeout_ms)

    @property
    def uuid(self) -> str:
        """This server's permanent id; known once `start` has returned."""
        return self._opened.uuid

    @property
    def leading(self) -> Leading | None:
        """The role in the masters' group, for status pages and tests; None before the first start's join."""
        return self._leading

    @property
    def failure(self) -> NyalaError | None:
        """Why this master cannot serve and will not without help; None: it serves, or still tries."""
        return self._failure

    @property
    def _opened(self) -> Instance:
        if self._instance is None:
            raise Unavailable("this master is starting; ask again")
        return self._instance

    async def start(self) -> None:
        """Open or format the data directory and begin to serve; durable on return.

        An initialised master has opened its sys catalog on return. A fresh one waits in the background
        until every other master has answered; `failure` and its answers tell when that is hopeless.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory cannot be this master's.
        """
        env, config = self._env, self._config
        opened = instance.open_instance(env.files, config.dir, "master", env.random)
        self._clock = HybridClock(env.clock, env.files, f"{config.dir}/{CLOCK_FILE}")
        self._incarnation = self._clock.now()
        self._instance = opened
        self._group = await Group.open(env, config, self._clock, opened.uuid, self._transport)
        self._peers.start()
        if opened.initialised:
            await self._lead(None)
        else:
            env.tasks.spawn(self._join(), "join the masters")

    def handlers(self) -> Handlers:
        """Return everything that this master answers on its public port."""
        return {
            **self._service.handlers(),
            **self._heartbeats.handlers(),
            **self._flights.handlers(),
        }

    async def close(self) -> None:
        """Stop leading and close the group; files stay as they are. Cancels nobody else's tasks."""
        if self._leading is not None:
            self._leading.stop()
        if self._group is not None:
            await self._group.close()

    def info(self) -> pb.ServerInfoResponse:
        """Return this server's registration."""
        config, opened = self._config, self._opened
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

    def status(self) -> pb.MasterStatusResponse:
        """Return what this master is to the masters' group; before it joined, the list it was given."""
        opened, leading = self._opened, self._leading
        answer = pb.MasterStatusResponse(uuid=opened.uuid, cluster_id=opened.cluster_id)
        if leading is None:
            for address in self._addresses:
                answer.consensus.members.add(address=address)
            return answer
        status = leading.status()
        answer.leader = status.role is Role.LEADER
        answer.ready = leading.current() is not None
        answer.term = status.term
        answer.consensus.CopyFrom(
            convert.consensus_to_proto(status.config, status.term, status.leader)
        )
        leader = None if status.leader is None else status.config.get(status.leader)
        if leader is not None:
            answer.leader_uuid, answer.leader_address = leader.uuid, leader.address
        return answer

    def standing(self) -> Standing:
        """Return what this master says of itself in each answer to a heartbeat."""
        opened, leading = self._opened, self._leading
        return Standing(
            opened.uuid,
            opened.cluster_id,
            "" if leading is None or self._cluster is None else self._cluster.catalog_incarnation,
            0 if leading is None else leading.status().term,
            self._addresses,
        )

    def _why_waiting(self) -> str:
        if self._failure is not None:
            return f"this master cannot join the others: {self._failure}"
        missing = self._peers.missing() if self._instance is not None else []
        return (
            f"this master is new and waits for the masters {', '.join(missing)} to answer"
            if missing
            else "this master is starting; ask again"
        )

    async def _join(self) -> None:
        """First start: wait until all masters are known, then make the group that all of them make."""
        while self._peers.missing():
            await self._env.tasks.sleep_ms(self._settings.look_ms)
        try:
            first = self._peers.first_configuration()
        except NyalaError as err:
            log.error("this master cannot join the others: %s", err)
            self._failure = err
            return
        await self._lead(first)
        self._instance = instance.update(
            self._env.files, self._config.dir, self._opened, initialised=True
        )

    async def _lead(self, first: Configuration | None) -> None:
        """Open the sys catalog, or make it with its first configuration, and follow this master's role."""
        assert self._group is not None, "the group is opened at the start"
        replica, tablet = await self._group.sys_catalog(first)
        self._leading = Leading(
            self._env, replica, tablet, replica.status, self._servers, self._settings.leading
        )
        self._leading.start()
        self._env.tasks.spawn(self._learn_cluster(), "learn the cluster's id")

    async def _learn_cluster(self) -> None:
        """Read the cluster's record from this master's own replica, leader or not, until it is there."""
        assert self._group is not None, "the group is opened at the start"
        while self._cluster is None:
            self._cluster = await self._group.cluster()
            await self._env.tasks.sleep_ms(self._settings.look_ms)
        self._instance = instance.update(
            self._env.files,
            self._config.dir,
            self._opened,
            cluster_id=self._cluster.cluster_id,
        )
