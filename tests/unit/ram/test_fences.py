"""Fences of an ensemble: its id, the ids of its servers, and epochs that its journal does not know."""

from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound, NyalaError, StaleEpoch, TimedOut
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import leader_address, note_alive
from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.storage_server import StorageConfig, StorageServer
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import LOG, ensemble
from tests.unit.ram.support.requests import create, started


@ensemble
async def test_bad_requests_to_a_server_are_refused_and_change_nothing(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 3), 20_000)
    member = e.servers["s0"].member
    epoch, owned = member.guard.epoch, set(member.owned)
    good: dict[str, Any] = {
        "ensemble": member.ensemble,
        "epoch": epoch,
        "server": member.id.message(),
    }
    requests: list[tuple[Any, Any, dict[str, Any]]] = [
        (
            methods.RAM_TAKE_OWNERSHIP,
            pb.TakeTabletOwnershipRequest,
            {"tablets": [pb.Owned(table_id=7)]},
        ),
        (methods.RAM_DROP_OWNERSHIP, pb.DropTabletOwnershipRequest, {"table_id": 1}),
        (methods.RAM_SPLIT_OWNED, pb.SplitMasterTabletRequest, {"table_id": 1, "split_hash": 5}),
        (methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest, {}),
        (methods.RAM_UPDATE_SERVER_LIST, pb.UpdateServerListRequest, {"version": 99, "full": True}),
        (methods.RAM_PING, pb.PingRequest, {}),
    ]
    wrong: list[tuple[dict[str, Any], type[NyalaError]]] = [
        ({"ensemble": "other"}, InvalidArgument),
        ({"ensemble": f"{LOG}@other", "epoch": epoch + 9}, InvalidArgument),
        ({"epoch": epoch - 1}, StaleEpoch),
        ({"epoch": 0}, StaleEpoch),
        ({"server": pb.ServerId(index=1, generation=77)}, NotFound),
        ({"server": pb.ServerId(index=1, generation=77), "epoch": epoch + 9}, NotFound),
    ]
    for method, make, fields in requests:
        for change, error in wrong:
            request = make(fence=pb.Fence(**{**good, **change}), **fields)
            with pytest.raises(error):
                await e.deliver("client", "s0:1", method, request, 1000)
    for method, make in (
        (methods.RAM_TAKE_OWNERSHIP, pb.TakeTabletOwnershipRequest),
        (methods.RAM_SET_OWNERSHIP, pb.SetOwnershipRequest),
    ):
        request = make(fence=pb.Fence(**good), tablets=[pb.Owned(table_id=7, first=9, last=8)])
        with pytest.raises(InvalidArgument, match="no hashes"):
            await e.deliver("client", "s0:1", method, request, 1000)
    assert member.owned == owned
    assert member.guard.epoch == epoch


@ensemble
async def test_server_that_comes_from_another_ensemble_of_the_same_name_replaces_nobody(e):
    await started(e)
    term = e.leader().term
    for other in (f"{LOG}@other", ""):
        there = e.servers["s0"].member.id
        request = pb.EnlistRequest(
            roles=["master"], address="new:1", replaces=there.message(), ensemble=other
        )
        made = await (await e.client()).call(methods.RAM_ENLIST, request, 9_000)
        assert ServerId.of(made.id) != there
        assert made.ensemble == term.ensemble
        assert term.state.servers.is_up(there)


class _NewEnsemble:
    """Coordinators of an ensemble with another journal than before; its server 1.1 is up elsewhere."""

    def __init__(self) -> None:
        self.ensembles = [f"{LOG}@before", f"{LOG}@now"]
        self.replaced: list[str] = []

    async def call(self, method: Any, request: Any, timeout_ms: int) -> Any:
        one = ServerId(1, 1).message()
        if method is methods.RAM_SERVER_LIST:
            up = pb.ServerState(id=one, status="UP", address="elsewhere:1")
            return pb.ServerListResponse(servers=[up], ensemble=f"{LOG}@now")
        self.replaced.append(request.ensemble)
        return pb.EnlistResponse(id=one, epoch=1, ensemble=self.ensembles.pop(0))


@ensemble
async def test_server_of_another_ensemble_enlists_anew_though_its_id_is_up_here(e):
    env, journal = await e.open("s0")
    coordinators: Any = _NewEnsemble()
    noted = lambda: note_alive(journal, LOG, "s0:1")  # noqa: E731
    server = StorageServer(env, StorageConfig("s0:1"), coordinators, noted)
    await server.start()
    await e.until(lambda: not coordinators.ensembles)
    assert coordinators.replaced == ["", f"{LOG}@before"]
    await server.close()


@ensemble
async def test_epoch_that_the_journal_does_not_know_costs_the_server_its_id_and_stops_nobody(e):
    await started(e)
    client = await e.client()
    await client.call(*create("t", 6), 20_000)
    leader, member = e.leader(), e.servers["s0"].member
    term = leader.term
    fence = pb.Fence(
        ensemble=member.ensemble, epoch=member.guard.epoch + 10**6, server=member.id.message()
    )
    await e.deliver("other", "s0:1", methods.RAM_PING, pb.PingRequest(fence=fence), 1000)
    await client.call(*create("u", 6), 5_000)
    await e.until(lambda: e.servers["s0"].enlisted and e.servers["s0"].member is not member)
    await e.until(e.settled)
    assert leader.term is term, "the leader stepped down"
    assert e.servers["s0"].member.guard.epoch == term.epoch
    assert all(
        len(e.owners(n, h)) == 1 for n in (1, 2) for h in range(0, LAST_HASH, LAST_HASH // 50)
    )


@ensemble
async def test_leader_that_cannot_ask_the_journal_whether_there_is_a_later_one_stays(e):
    await started(e)
    calls, server = e.leader().term.calls, e.servers["s0"].member

    async def nobody_answers() -> None:
        raise TimedOut("no answer from the journal")

    server.guard.check(calls.epoch + 1)
    calls.confirm = nobody_answers
    assert await calls.ping(server.id) is None


@ensemble
async def test_server_whose_journal_was_dropped_ends(e):
    ended: list[NyalaError] = []
    env, journal = await e.open("s0")
    coordinator = EnsembleClient(env, lambda: leader_address(journal, LOG))
    noted = lambda: note_alive(journal, LOG, "s0:1")  # noqa: E731
    server = StorageServer(env, StorageConfig("s0:1"), coordinator, noted, on_end=ended.append)
    await server.start()
    await e.wait_s(5)
    assert not ended, "it waits for a coordinator"
    e.journal.dropped, e.journal.tablet = True, "c" * 32
    await e.until(lambda: ended)
    assert [type(err) for err in ended] == [NotFound]
    await server.close()
