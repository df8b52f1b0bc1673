"""A permanently lost master is replaced by one with its uuid, and returns later."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.ids import SYS_CATALOG, ServerUuid
from nyala.datadir.instance import format_instance
from nyala.env.env import Env
from nyala.offline import inspection, rewrite_config
from nyala.offline.copy import StoppedServer, copy_to_directory, delete_in_directory
from nyala.replica.status import State
from tests.sim.faults.master_changes import new_master
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess

FOLDER = "/data"


def with_masters(work: Callable[[SimCluster], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 5)
        await cluster.create_table(await cluster.start(), "kept")
        await work(cluster)

    run(main, max_time_s=300)


async def tables(cluster: SimCluster) -> list[str]:
    """The names of all tables, read by a new client."""
    core = cluster.client()

    async def ask() -> list[str]:
        return sorted(t.name for t in await core.tables())

    found = await cluster.run(cluster.clients[-1], ask)
    assert isinstance(found, list)
    return found


async def led(cluster: SimCluster) -> SimProcess:
    """Wait for a leader that all masters know."""
    await cluster.until(lambda: cluster.leader_master() is not None, "a master leads")
    await tables(cluster)
    found = cluster.leader_master()
    assert found is not None
    return found


def victim(cluster: SimCluster, leads: bool) -> SimProcess:
    return next(m for m in cluster.masters if (m is cluster.leader_master()) == leads)


async def fill(cluster: SimCluster, process: SimProcess, uuid: ServerUuid) -> None:
    """Create a directory with a dead master's identity and a copy of the leader's catalog, and start it."""

    async def copy(env: Env, source: str) -> None:
        await copy_to_directory(StoppedServer(env, OPTIONS, FOLDER, "master"), SYS_CATALOG, source)

    env = process.open()
    env.files.remove_tree(FOLDER)
    format_instance(env.files, FOLDER, "master", uuid, replaces=True)
    process.kill(power_cut=False)  # each command is a process of its own
    await process.run(copy, process.open(), (await led(cluster)).address)
    process.kill(power_cut=False)
    await process.start()


async def works_without(cluster: SimCluster, dead: SimProcess, name: str) -> None:
    """Stop one more master: the catalog can be read and changed."""
    dead.kill()
    await led(cluster)
    await cluster.create_table(cluster.client(), name)
    assert "kept" in await tables(cluster)


@pytest.mark.row("S2.3", "S2.9")
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_dead_master_is_replaced_in_any_role(leads: bool) -> None:
    async def work(cluster: SimCluster) -> None:
        dead = victim(cluster, leads)
        uuid = ServerUuid(dead.server.uuid)
        dead.kill()
        await led(cluster)
        await cluster.create_table(cluster.client(), "meanwhile")
        await fill(cluster, dead, uuid)
        other = next(m for m in cluster.masters if m is not dead)
        await works_without(cluster, other, "later")
        assert dead.server.uuid == uuid

    with_masters(work)


def indexes(cluster: SimCluster) -> set[int]:
    """The last applied index of each master's catalog; -1: it does not run."""
    found = [m.server.host.find(SYS_CATALOG) if m.alive and m.server and m.server.host else None
             for m in cluster.masters]  # fmt: skip
    return {-1 if replica is None else replica.status().applied.index for replica in found}


@pytest.mark.row("S2.1")
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["stopped", "power"])
def test_transient_failure_of_a_master_needs_no_operator(leads: bool, power_cut: bool) -> None:
    async def work(cluster: SimCluster) -> None:
        absent = victim(cluster, leads)
        absent.kill(power_cut=power_cut)
        await cluster.create_table(cluster.client(), "meanwhile")
        assert await tables(cluster) == ["kept", "meanwhile"]
        await absent.start()
        await cluster.until(
            lambda: len(indexes(cluster)) == 1, "the master that was absent has caught up"
        )
        assert -1 not in indexes(cluster)
        other = next(m for m in cluster.masters if m is not absent)
        await works_without(cluster, other, "later")  # with the vote of the one that was absent

    with_masters(work)


@pytest.mark.row("S2.4")
def test_master_whose_catalog_was_deleted_serves_nothing_and_elects_nobody() -> None:
    async def work(cluster: SimCluster) -> None:
        dead = victim(cluster, leads=True)
        others = [m for m in cluster.masters if m is not dead]
        dead.kill(power_cut=False)

        async def delete(env: Env) -> bool:
            stopped = StoppedServer(env, OPTIONS, FOLDER, "master")
            return await delete_in_directory(stopped, SYS_CATALOG)

        for there in (True, False):  # each command is a process of its own
            assert await dead.run(delete, dead.open()) is there
            dead.kill(power_cut=False)
        await led(cluster)
        await cluster.create_table(cluster.client(), "meanwhile")
        others[0].kill()  # the deleted one and the other would be a majority
        dead.disk.lost_data = True  # the checkers allow its failure
        dead.start()
        await cluster.until(
            lambda: dead.server and dead.server.failure, "the deleted master stops serving"
        )
        assert "this master was removed from the masters" in str(dead.server.failure)
        await cluster.loop.delay(30_000_000)
        assert cluster.leader_master() is not dead
        others[0].start()
        assert await led(cluster) is not dead
        assert await tables(cluster) == ["kept", "meanwhile"]

    with_masters(work)


def tell_address(master: SimProcess, uuid: ServerUuid, peer: SimProcess) -> None:
    """Rewrite the address of one of a stopped master's peers."""
    files = master.disk.mount()
    known = inspection.stopped_replica(files, FOLDER, SYS_CATALOG)
    peers = [
        replace(m, address=peer.address, peer_address=peer.peer_address) if m.uuid == uuid else m
        for m in known.config.members
    ]
    after = rewrite_config.rewritten(known, SYS_CATALOG, peers, force=False)
    assert rewrite_config.rewrite(files, FOLDER, SYS_CATALOG, known, after)


@pytest.mark.row("S2.5")
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_replaced_master_does_not_participate_after_return(leads: bool) -> None:
    async def work(cluster: SimCluster) -> None:
        old = victim(cluster, leads)
        uuid, others = ServerUuid(old.server.uuid), [m for m in cluster.masters if m is not old]
        old.kill()
        await led(cluster)
        replacement = new_master(cluster, *(m.address for m in others))
        for master in others:
            master.kill(power_cut=False)
            tell_address(master, uuid, replacement)
            await master.start()
            await led(cluster)
        await fill(cluster, replacement, uuid)
        await cluster.create_table(cluster.client(), "meanwhile")
        (await led(cluster)).kill()  # the old one and either of the two would be a majority
        old.disk.lost_data = True  # the checkers allow its failure
        old.start()
        await cluster.until(
            lambda: old.server and old.server.failure, "the old master stops serving"
        )
        assert isinstance(old.server.failure, InvalidArgument)
        assert "it was replaced" in old.server.failure.message
        assert replacement.address in old.server.failure.message
        replica = old.server.host.find(SYS_CATALOG)
        assert replica.state is State.FAILED
        assert await led(cluster) is not old
        await cluster.create_table(cluster.client(), "later")
        assert await tables(cluster) == ["kept", "later", "meanwhile"]
        assert old.server.host.find(SYS_CATALOG).last == replica.last

    with_masters(work)
