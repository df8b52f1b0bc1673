"""Scenarios of an ensemble: late requests, requests during the replay, concurrent requests."""

import asyncio
import json
import random
from typing import Any

import pytest

from nyala.client.journal.pages import MAX_ID
from nyala.common.errors import AlreadyPresent, NotLeading, StaleEpoch, Unavailable
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import leader_address
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.ram.support.ensemble import LOG, SimEnsemble, ensemble

LONG_MS = 120_000


async def started(e: SimEnsemble, *, coordinators: int = 2, servers: int = 3) -> None:
    for n in range(coordinators):
        await e.coordinator(f"c{n}")
    for n in range(servers):
        await e.server(f"s{n}")
    await e.until(e.settled)


def create(name: str, span: int = 3, *, client: str = "") -> tuple[Any, Any]:
    operation = pb.OperationId(client=client, sequence=1)
    return methods.RAM_CREATE_TABLE, pb.CreateTableRequest(
        name=name, server_span=span, operation=operation
    )


def drop(name: str) -> tuple[Any, Any]:
    return methods.RAM_DROP_TABLE, pb.DropTableRequest(name=name)


async def tables(client: EnsembleClient) -> list[Any]:
    found = await client.call(methods.RAM_TABLET_MAP, pb.TabletMapRequest(), 20_000)
    return list(found.tables)


async def dump(client: EnsembleClient) -> Any:
    return json.loads((await client.call(methods.RAM_DUMP, pb.DumpRequest(), 20_000)).json)


def assert_one_owner(e: SimEnsemble, table_id: int) -> None:
    assert all(len(e.owners(table_id, h)) == 1 for h in range(0, LAST_HASH, LAST_HASH // 50))


class HeldReplay:
    """Reads of entries of the log wait until `end`; elections read its last id only, and go on.

    Attributes:
        waiting: number of reads that wait.
    """

    def __init__(self, e: SimEnsemble) -> None:
        self.waiting, self._released = 0, asyncio.Event()
        self._call, self._tail = e.journal.call, e.journal.tail
        e.journal.call, e.journal.tail = self.call, self.tail  # type: ignore[method-assign]

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        if method is methods.JOURNAL_READ and request.log.log == LOG and request.log.after < MAX_ID:
            await self._wait()
        return await self._call(address, method, request, timeout_ms=timeout_ms)

    async def tail(self, address: str, request: Any) -> Any:
        await self._wait()
        return await self._tail(address, request)

    async def _wait(self) -> None:
        self.waiting += 1
        await self._released.wait()

    def end(self) -> None:
        """Let all reads go on."""
        self._released.set()


# ---- a leader that is paused between its look at the leadership and a request to a server ---------------


@pytest.mark.row("S3.64", "S3.67")
@ensemble
async def test_requests_that_a_replaced_leader_sent_late_are_refused_and_change_nothing(e):
    """Its create is completed by the next leader, the table dropped; then its requests arrive."""
    late: list[tuple[str, Any]] = []
    deliver = e.deliver

    async def pausing(sender: str, address: str, method: Any, request: Any, timeout_ms: int) -> Any:
        if sender == "c0" and method is methods.RAM_TAKE_OWNERSHIP:
            e.cut.add("c0")
            late.append((address, request))
        return await deliver(sender, address, method, request, timeout_ms)

    e.deliver = pausing
    await e.coordinator("c0")
    await e.until(e.leader)
    await e.coordinator("c1")
    for n in range(3):
        await e.server(f"s{n}")
    await e.until(e.settled)
    client, old = await e.client(), e.leader()
    assert old is e.coordinators["c0"]
    made = await client.call(*create("t", 3), LONG_MS)
    assert e.leader() is e.coordinators["c1"], (
        "it was the next leader that has completed the create"
    )
    assert len(late) == 3, "each server was to take a tablet"
    assert_one_owner(e, made.table.id)
    await client.call(*drop("t"), LONG_MS)
    await e.until(lambda: not any(s.member.owned for s in e.servers.values()))
    before = await dump(client)
    for address, request in late:
        with pytest.raises(StaleEpoch, match="its sender does not lead any more"):
            await deliver("client", address, methods.RAM_TAKE_OWNERSHIP, request, 1_000)
    assert not any(s.member.owned for s in e.servers.values())
    e.cut.clear()
    with pytest.raises(NotLeading):
        await old.term.execute("create_table", create("late")[1])
    await e.until(e.settled)
    assert await dump(client) == before


@pytest.mark.row("S3.65")
@pytest.mark.parametrize("answers", [True, False], ids=["does not lead", "does not answer"])
def test_client_with_the_address_of_the_leader_before_finds_the_present_one(answers):
    @ensemble
    async def scenario(e):
        await started(e)
        old = next(n for n, c in e.coordinators.items() if c is e.leader())
        e.cut.add(old)
        await e.until(lambda: e.leader() is not e.coordinators[old] and e.leader())
        if answers:
            e.cut.clear()
            await e.until(e.settled)
        env, journal = await e.open("client")
        hints: list[str] = []

        async def leader() -> str:
            hints.append(await leader_address(journal, LOG) if hints else f"{old}:1")
            return hints[-1]

        made = await EnsembleClient(env, leader).call(*create("t"), 20_000)
        assert len(hints) > 1
        assert {*hints[1:]} == {f"{n}:1" for n in e.coordinators if n != old}
        e.cut.clear()
        await e.until(e.settled)
        assert_one_owner(e, made.table.id)

    scenario()


# ---- replay before service -----------------------------------------------------------------------------


@pytest.mark.row("S3.48")
@ensemble
async def test_drop_and_enlistment_that_come_during_the_replay_wait_for_its_end(e):
    await started(e, coordinators=1)
    client = await e.client()
    made = await client.call(*create("t", 3), 20_000)
    await e.kill("c0")
    replay = HeldReplay(e)
    await e.server("s9")
    dropping = asyncio.get_running_loop().create_task(client.call(*drop("t"), LONG_MS))
    await e.coordinator("c1")
    await e.wait_s(5)
    assert replay.waiting
    for _ in range(20):
        await e.wait_s(0.25)
        assert not dropping.done()
        assert not e.servers["s9"].enlisted
        with pytest.raises(NotLeading, match="replays its log"):
            await e.deliver("client", "c1:1", methods.RAM_DUMP, pb.DumpRequest(), 1_000)
    replay.end()
    assert (await dropping).id == made.table.id, "the table was found, since the log was replayed"
    await e.until(e.settled)
    assert e.servers["s9"].enlisted
    assert await tables(client) == []
    assert not any(s.member.owned for s in e.servers.values())


# ---- concurrent requests -------------------------------------------------------------------------------


@pytest.mark.row("S3.3")
@pytest.mark.parametrize("seed", range(3))
def test_concurrent_requests_and_crashes_lose_no_change_and_give_no_id_twice(seed):
    """Eight clients create, split and drop, three servers enlist, and one crashes, all at a time."""

    async def main(loop: SimLoop) -> None:
        e, rng = SimEnsemble(loop, seed), random.Random(seed)
        await started(e, coordinators=1, servers=4)
        ids: list[int] = []
        kept: dict[str, set[int]] = {}
        shared: list[Any] = []

        async def one_client(number: int) -> None:
            client = await e.client(f"client-{number}")
            for round_ in range(4):
                name = f"t{number}-{round_}"
                made = (await client.call(*create(name, 2, client=name), LONG_MS)).table
                ids.append(made.id)
                points = {0, 1 << 63, *(rng.randrange(1, LAST_HASH) for _ in range(2))}
                for at in sorted(points - {0, 1 << 63}):
                    request = pb.SplitTabletRequest(name=name, split_hash=at)
                    await client.call(methods.RAM_SPLIT_TABLET, request, LONG_MS)
                if round_ % 2:
                    assert (await client.call(*drop(name), LONG_MS)).id == made.id
                else:
                    kept[name] = points
            try:
                wanted = create("shared", 1, client=f"client-{number}")
                shared.append((await client.call(*wanted, LONG_MS)).table.id)
            except AlreadyPresent:
                return

        await asyncio.gather(
            *(one_client(n) for n in range(8)),
            *(e.server(f"late{n}") for n in range(3)),
            e.kill("s1"),
        )
        await e.until(e.settled)
        client = await e.client()
        found = {t.name: t for t in await tables(client)}
        assert found.keys() == {*kept, "shared"}
        assert [found["shared"].id] == shared, "one of eight"
        assert len({*ids, *shared}) == 8 * 4 + 1
        assert {n: {t.first for t in found[n].tablets} for n in kept} == kept
        servers = [s.member.id for s in e.servers.values()]
        assert len({*servers}) == len(servers) == 6
        assert {ServerId.of(t.master) for one in found.values() for t in one.tablets} <= {*servers}
        before = await dump(client)
        await e.kill("c0")
        await e.coordinator("c1")
        await e.until(e.settled)
        assert await dump(client) == before

    run(main, max_time_s=3000)


@pytest.mark.row("S3.13", "S3.50")
@ensemble
async def test_create_does_not_repair_the_crash_of_a_server_that_the_recovery_repairs(e):
    await started(e, coordinators=1)
    client, dead = await e.client(), e.servers["s1"].member.id
    await e.kill("s1")
    made = await client.call(*create("t", 6), 20_000)
    masters = [ServerId.of(t.master) for t in made.table.tablets]
    assert masters.count(dead) == 2, "as it was planned, since the crash was not known"
    assert e.leader().term.state.servers.is_up(dead)
    await e.until(e.settled)
    assert dead not in {ServerId.of(t.master) for t in (await tables(client))[0].tablets}
    assert_one_owner(e, made.table.id)


@ensemble
async def test_silent_servers_delay_an_operation_by_one_call_however_many_they_are(e):
    await started(e, servers=12)
    client, other = await e.client(), await e.client("other")
    await client.call(*create("gone", 12), 20_000)
    await e.until(e.settled)
    e.cut |= {f"s{n}" for n in range(10)}
    began = e.loop.now_us()
    await client.call(*create("t", 12), 20_000)
    assert e.loop.now_us() - began < 1_500_000
    began = e.loop.now_us()
    await other.call(*drop("gone"), 20_000)
    assert e.loop.now_us() - began < 1_500_000


@ensemble
async def test_command_without_an_ensemble_says_so_soon_and_waits_for_a_leader_that_is_named(e):
    env, journal = await e.open("command")
    command = EnsembleClient(env, lambda: leader_address(journal, LOG), unnamed_ms=1_500)
    began = e.loop.now_us()
    with pytest.raises(Unavailable, match=r"the journal has named none\); .*nyala ram up"):
        await command.call(methods.RAM_TABLET_MAP, pb.TabletMapRequest(), 10_000)
    assert e.loop.now_us() - began < 2_500_000
    await started(e, coordinators=1)
    await e.kill("c0")
    waiting = asyncio.get_running_loop().create_task(tables(command))
    await e.wait_s(1)
    await e.coordinator("c1")
    assert await waiting == [], "the leader that crashed is named, and another one is elected"
