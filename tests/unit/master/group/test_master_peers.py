"""New masters find each other, and two lists cannot make two majorities."""

import pytest

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.group.peers import MasterPeers, check_address
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import Incarnation, SimLoop, run, seeded
from tests.sim.world.network import Endpoint, SimNetwork
from tests.sim.world.rpc import SimRpc
from tests.sim.world.tasks import SimClock, SimTasks

ALL = ("m1:1", "m2:1", "m3:1")


class World:
    """Masters that answer PollMaster, and nothing else."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, seeded(1))
        self.info = {
            a: pb.ServerInfoResponse(uuid=f"u{a[1]}", role="master", address=a) for a in ALL
        }
        self.status = {a: self.fresh(ALL) for a in ALL}

    @staticmethod
    def fresh(addresses, uuids=("", "", "", "")):
        status = pb.MasterStatusResponse()
        for address, uuid in zip(addresses, uuids, strict=False):
            status.consensus.members.add(address=address, uuid=uuid)
        return status

    def listen(self, address):
        async def status(request):
            answer = pb.MasterStatusResponse(server=self.info[address])
            answer.MergeFrom(self.status[address])
            return answer

        handlers = {methods.POLL_MASTER: status}
        self.network.bind(address, Endpoint(address, Incarnation(address), handlers))

    def peers(self, address="m1:1", masters=ALL) -> MasterPeers:
        env = Env(
            SimClock(self.loop),
            seeded(2),
            None,  # type: ignore[arg-type]
            SimTasks(self.loop, seeded(3)),
            SimRpc(self.network, address, Incarnation(address)),
        )
        peers = MasterPeers(env, lambda: self.info[address], masters, Options())
        peers.start()
        return peers


def refuse(peers):
    """The parts that a new master needs before it joins."""
    if members := peers.group():
        check_address(peers.own, members)
    peers.first_configuration()


def with_world(work):
    async def main(loop):
        return await work(World(loop))

    return run(main)


def test_startup_waits_for_all_masters_and_all_form_the_same_group():
    async def work(world):
        world.listen("m2:1")
        peers = world.peers()
        await world.loop.delay(3_000_000)
        assert peers.missing() == ["m3:1"]
        world.listen("m3:1")
        await world.loop.delay(3_000_000)
        world.listen("m1:1")
        others = world.peers("m3:1")
        await world.loop.delay(1_000_000)
        assert not peers.missing()
        assert others.first_configuration() == peers.first_configuration()
        return [m.address for m in peers.first_configuration().members]

    assert with_world(work) == list(ALL)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda w: w.status.update({"m3:1": w.fresh(("m1:1", "m3:1"))}),
            InvalidArgument,
            "m3:1 with m1:1, m3:1; start all with the same list",
        ),
        (
            lambda w: w.status.update({"m3:1": w.fresh(ALL, ("u9", "u2", "u3"))}),
            Forbidden,
            r"have a catalog already, and this one \(u1\) is not a member",
        ),
        (
            lambda w: setattr(w.info["m2:1"], "role", "tserver"),
            InvalidArgument,
            "m2:1 is a tserver, not a master",
        ),
        (
            lambda w: setattr(w.info["m2:1"], "uuid", "u3"),
            InvalidArgument,
            "names one server twice",
        ),
    ],
)
def test_inconsistent_master_groups_are_refused(change, error, message):
    async def work(world):
        change(world)
        world.listen("m2:1")
        world.listen("m3:1")
        peers = world.peers()
        await world.loop.delay(2_000_000)
        with pytest.raises(error, match=message):
            refuse(peers)

    with_world(work)


def test_slow_master_joins_group_formed_by_the_others():
    async def work(world):
        world.status = {a: world.fresh(ALL, ("u1", "u2", "u3")) for a in ALL}
        world.listen("m2:1")
        world.listen("m3:1")
        peers = world.peers()
        await world.loop.delay(2_000_000)
        return [m.uuid for m in peers.first_configuration().members]

    assert with_world(work) == ["u1", "u2", "u3"]


def test_master_list_shows_liveness_and_leader():
    async def work(world):
        world.listen("m2:1")
        world.listen("m3:1")
        peers = world.peers()
        await world.loop.delay(2_000_000)
        members = peers.first_configuration().members
        world.network.partition(["m1:1"], ["m3:1"])
        await world.loop.delay(7_000_000)
        return [(e.address, e.alive, e.leader) for e in peers.entries("u2", members)]

    assert with_world(work) == [("m1:1", True, False), ("m2:1", True, True), ("m3:1", False, False)]
