"""Requests to the coordinator on virtual time: refusals, unknown outcomes, requests that are sent again."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    NotLeading,
    NyalaError,
    OutcomeUnknown,
    Unavailable,
)
from nyala.ram.calls import EnsembleClient
from nyala.ram.checks import MAX_SPAN
from nyala.ram.coordinator import Coordinator, CoordinatorConfig
from nyala.ram.server_list import ROLES
from nyala.ram.storage_server import StorageConfig, StorageServer
from nyala.recipes.guard import EpochGuard
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import ensemble
from tests.unit.ram.support.requests import create, drop, dump, started


@ensemble
async def test_drop_that_is_sent_again_spares_a_new_table_of_the_same_name(e):
    lost: list[str] = []

    def lose_the_answer(name: str) -> None:
        if name == "after drop_table intent" and not lost:
            lost.append("client")
            e.cut.add("client")

    await e.coordinator("c0", lose_the_answer)
    await e.server("s0")
    await e.until(e.settled)
    client, other = await e.client(), await e.client("other")
    await client.call(*create("t", 3), 20_000)
    dropping = asyncio.get_running_loop().create_task(client.call(*drop("t"), 60_000))
    await e.until(lambda: e.cut)
    request = pb.CreateTableRequest(name="t", server_span=1)
    made = await other.call(methods.RAM_CREATE_TABLE, request, 20_000)
    e.cut.clear()
    await dropping
    found = await other.call(methods.RAM_TABLET_MAP, pb.TabletMapRequest(), 20_000)
    assert [t.id for t in found.tables] == [made.table.id]


@pytest.mark.row("S3.18", "S3.65")
@pytest.mark.parametrize("end", ["killed", "cut off", "resigned"])
def test_request_that_no_coordinator_answers_ends_in_time_and_names_whom_it_asked(end):
    @ensemble
    async def scenario(e):
        await started(e, coordinators=1)
        client = await e.client()
        if end == "killed":
            await e.kill("c0")
        elif end == "resigned":
            await e.coordinators["c0"].close()
        else:
            e.cut.add("c0")
        expected = {
            "killed": "c0:1 cannot be reached",
            "cut off": "c0:1 does not answer in time",
            "resigned": "the journal has named none",
        }[end]
        for request in (methods.RAM_SERVER_LIST, pb.ServerListRequest()), create("t"), drop("u"):
            began = e.loop.now_us()
            with pytest.raises(NyalaError, match=f"{expected}.*nyala ram up") as caught:
                await client.call(*request, 3_000)
            assert e.loop.now_us() - began < 4_500_000, "three seconds, and the last try"
            unknown = end == "cut off" and request[0] is not methods.RAM_SERVER_LIST
            assert type(caught.value) is (OutcomeUnknown if unknown else Unavailable)

    scenario()


@ensemble
async def test_processes_with_a_wrong_configuration_are_refused(e):
    env, journal = await e.open("x")
    for name, address in (
        ("", "a:1"),
        ("a\n", "a:1"),
        ("a" * 257, "a:1"),
        ("a", "a:0"),
        ("a", "a"),
    ):
        with pytest.raises(InvalidArgument):
            Coordinator(env, CoordinatorConfig(address, name), journal)
    for address, roles in (
        ("a:1", ()),
        ("a:1", ("king",)),
        ("a:1", ("",)),
        ("a:0", ROLES),
        ("a", ROLES),
    ):
        with pytest.raises(InvalidArgument):
            StorageServer(env, StorageConfig(address, roles), EnsembleClient(env, e.open), e.wait_s)


@ensemble
async def test_answer_of_a_leader_that_refuses_is_the_answer_of_the_call(e):
    await e.coordinator("c0")
    await e.until(e.leader)
    client = await e.client()
    with pytest.raises(Unavailable, match="no server that could own tablets is up"):
        await client.call(*create("t"), 1_000)
    for name in ("tables", "events"):
        with pytest.raises(NotFound, match="tables are: none yet"):
            await client.call(*drop(name), 1_000)


@ensemble
async def test_missing_table_is_refused_with_the_nearest_name(e):
    await started(e, coordinators=1, servers=1)
    client = await e.client()
    for name in ("Events", *(f"t{n}" for n in range(10))):
        await client.call(*create(name, 1), 20_000)
    with pytest.raises(
        NotFound, match=r"did you mean 'Events'\? the tables are: Events, t0.*and others"
    ):
        await client.call(*drop("event"), 5_000)
    with pytest.raises(NotFound, match="no table 'zzz'; the tables are"):
        await client.call(*drop("zzz"), 5_000)


@pytest.mark.row("S3.18")
@ensemble
async def test_operation_whose_leader_is_lost_after_the_commit_point_has_an_unknown_outcome(e):
    async def lost() -> None:
        raise NotLeading("the journal has a later leader")

    def meet_a_later_leader(name: str) -> None:
        if name == "after create_table intent":
            e.servers["s0"].member.guard.check(1 << 62)
            one.term.calls.confirm = lost

    one = await e.coordinator("c0", meet_a_later_leader)
    await e.server("s0")
    await e.until(e.settled)
    with pytest.raises(
        OutcomeUnknown, match=r"create_table may take effect: server .* a later leader"
    ):
        await one.term.execute("create_table", create("t", 3)[1])
    e.servers["s0"].member.guard = EpochGuard()
    await e.until(e.settled)
    assert e.leader().term.state.tablets.by_name("t") is not None


@ensemble
async def test_operation_goes_on_when_its_caller_is_cancelled(e):
    callers: list[asyncio.Task[Any]] = []
    points: list[str] = []

    def cancel(name: str) -> None:
        points.extend([name] if callers else ())
        if name == "after create_table intent":
            callers[0].cancel()

    one = await e.coordinator("c0", cancel)
    await e.server("s0")
    await e.until(e.settled)
    loop = asyncio.get_running_loop()
    callers.append(loop.create_task(one.term.execute("create_table", create("t", 3)[1])))
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    await one.term.execute("drop_table", drop("t")[1])
    assert [p for p in points if "create_table" in p] == [
        f"{when} create_table {what}"
        for what in ("intent", "action 0", "done")
        for when in ("before", "after")
    ], "once, not again by the drop"
    await e.until(e.settled)


@ensemble
async def test_bad_requests_to_the_coordinator_are_refused_and_change_nothing(e):
    await started(e)
    client = await e.client()
    before = await dump(client)
    bad = [
        (methods.RAM_ENLIST, pb.EnlistRequest(address="a:1"), InvalidArgument),
        (methods.RAM_ENLIST, pb.EnlistRequest(roles=["king"], address="a:1"), InvalidArgument),
        *(
            (methods.RAM_ENLIST, pb.EnlistRequest(roles=["master"], address=a), InvalidArgument)
            for a in (
                "",
                "nowhere",
                ":7",
                "a:",
                "a:0",
                "a:65536",
                "a:-1",
                "a:\u0663",
                "a\n:7",
                "a/b:7",
                "a" * 255 + ":7",
            )
        ),
        (methods.RAM_CREATE_TABLE, pb.CreateTableRequest(name="", server_span=1), InvalidArgument),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a\n", server_span=1),
            InvalidArgument,
        ),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a" * 257, server_span=1),
            InvalidArgument,
        ),
        (methods.RAM_CREATE_TABLE, pb.CreateTableRequest(name="a"), InvalidArgument),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(
                name="a", server_span=1, operation=pb.OperationId(client="x" * 257, sequence=1)
            ),
            InvalidArgument,
        ),
        (
            methods.RAM_CREATE_TABLE,
            pb.CreateTableRequest(name="a", server_span=MAX_SPAN + 1),
            InvalidArgument,
        ),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(name="nothing"), NotFound),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(id=1), InvalidArgument),
        (methods.RAM_DROP_TABLE, pb.DropTableRequest(), InvalidArgument),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(split_hash=4), InvalidArgument),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="nothing", split_hash=4), NotFound),
        (methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name="t"), InvalidArgument),
        (methods.RAM_TABLET_MAP, pb.TabletMapRequest(name="nothing"), NotFound),
        (methods.RAM_HINT_CRASHED, pb.HintCrashedRequest(), NotFound),
        (methods.RAM_SET_RECOVERY_INFO, pb.SetRecoveryInfoRequest(), NotFound),
    ]
    for method, request, error in bad:
        with pytest.raises(error):
            await client.call(method, request, 5_000)
    assert await dump(client) == before
