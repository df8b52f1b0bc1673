"""Reads at leaders that were paused and replaced: what others have changed since must be in the answers."""

import asyncio
import functools

from tests.sim.journals.client import JournalClient, core_without_masters, opened_without_masters
from tests.sim.journals.history import GetKey, ListLogs, ReadLog
from tests.sim.journals.host import HOSTS
from tests.sim.journals.host_run import HostJournal
from tests.sim.journals.order import OrderWatch
from tests.sim.journals.work import RACE
from tests.sim.systems.core_cluster import CoreCluster
from tests.sim.systems.stores import GROUP
from tests.sim.world.loop import SimLoop, run

TURNS, READERS, STEPS = 4, 8, 20


async def _scenario(loop: SimLoop, seed: int, watch: OrderWatch) -> int:
    cluster = CoreCluster(loop, seed, 3, HOSTS[False, False])
    cluster.network.doubles_calls = True
    for server in cluster.servers:
        server.start()
    journal = HostJournal(loop, seed, cluster)
    journal.start()
    for _ in range(TURNS):
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        old = cluster.leader()
        assert old is not None
        old.pause()
        await cluster.until(functools.partial(cluster.led_by_another, old), "another leader")
        target = journal.history.acknowledged + STEPS
        await cluster.until(lambda wanted=target: journal.history.acknowledged >= wanted, "steps")  # type: ignore[misc]
        asking = []
        for number in range(READERS):
            process = cluster.new_process()
            core = core_without_masters(process.open())
            opened = opened_without_masters(GROUP, [old.address])
            client = JournalClient(loop, core, opened, journal.history, process.name)
            what = (ReadLog(RACE, 0, 1 << 63, 0, 1), ListLogs(), ReadLog("a"), GetKey("k"))[
                number % 4
            ]
            asking.append(process.run(client.read, what))
        await loop.delay(20_000)
        old.resume()
        await asyncio.gather(*asking)
    await journal.finish(watch)
    return journal.history.done["read"]


def ask_deposed_leaders(seed: int) -> int:
    """Run one seed; return the number of reads; raise a violation."""
    watch = OrderWatch()
    with watch.installed():
        return run(lambda loop: _scenario(loop, seed, watch), max_time_s=600)
