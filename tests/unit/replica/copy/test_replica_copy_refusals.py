"""Refusals of a copy by its source or target, or for damage in transit; without effects."""

import google_crc32c
import pytest

from nyala.common.errors import (
    AlreadyPresent,
    BadChecksum,
    Corrupt,
    Forbidden,
    InvalidArgument,
    NotFound,
    NotLeader,
    Throttled,
    Unavailable,
)
from nyala.common.options import Options
from nyala.copying.service import CopySourceService
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.status import State
from nyala.wire import methods
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import CopyProgram, scenario
from tests.unit.replica.support.replica_copy_refusals import OTHER, nothing_changed
from tests.unit.replica.support.replica_support import GROUP, uuid_of

FEW = Options(wal_segment_mb=1, copy_chunk_bytes=700, copy_sessions_max=1, copy_retry_ms=2000)


@scenario()
async def test_copy_of_unknown_tablet_is_refused(fleet):
    await fleet.order(3, 0, group=OTHER)
    assert isinstance(await fleet.refused(3, group=OTHER), NotFound)
    await nothing_changed(fleet, 3, OTHER)


@scenario()
async def test_copy_from_unexpected_server_uuid_is_refused(fleet):
    await fleet.order(3, 0, uuid="e" * 32)
    assert isinstance(await fleet.refused(3), InvalidArgument)
    await nothing_changed(fleet)


@scenario()
async def test_copy_orders_without_source_or_for_another_server_are_refused(fleet):
    for request in (
        pb.StartCopyRequest(destination_uuid=uuid_of(2), tablet_id=GROUP),
        pb.StartCopyRequest(destination_uuid=uuid_of(3), tablet_id=GROUP, source_uuid=uuid_of(0)),
    ):
        request.cluster_id = "one"
        with pytest.raises(InvalidArgument):
            await fleet.ask(3, methods.START_COPY, request)
    with pytest.raises(InvalidArgument, match="own server"):
        await fleet.order(3, 3)
    assert fleet.progress(3) is None


@scenario()
async def test_copy_over_running_replica_is_refused(fleet):
    leader = await flush(fleet)
    follower = (leader + 1) % 3
    before = fleet.replica(follower)
    with pytest.raises(AlreadyPresent, match="RUNNING"):
        await fleet.order(follower, leader)
    assert fleet.replica(follower) is before
    assert before.state is State.RUNNING


@pytest.mark.row("S2.13")
@scenario()
async def test_follower_is_source_only_with_force_while_group_has_leader(fleet):
    await fill(fleet)
    await fleet.pass_ms(500)  # by then all members know the commit index
    leader = await flush(fleet)
    follower = (leader + 1) % 3
    await fleet.order(3, follower)
    err = await fleet.refused(3)
    assert isinstance(err, NotLeader)
    assert err.details["leader"] == uuid_of(leader)
    await nothing_changed(fleet)
    await fleet.order(3, follower, force=True)
    progress = await fleet.copied(3)
    assert "may be lost" in progress.may_lose
    assert str(fleet.replica(follower).status().last.index) in progress.may_lose


@pytest.mark.row("S1.37")
@scenario()
async def test_sole_survivor_is_source_and_reports_possible_loss(fleet):
    await fill(fleet)
    await fleet.pass_ms(500)  # by then all members know the commit index
    leader = await flush(fleet)
    survivor = (leader + 1) % 3
    for number in range(3):
        if number != survivor:
            fleet.processes[number].kill()
    await fleet.until(
        lambda: fleet.replica(survivor).node.leader is None, "the survivor has no leader"
    )
    await fleet.order(3, survivor)
    progress = await fleet.copied(3)
    assert "no leader is known: writes after" in progress.may_lose
    assert fleet.replica(3).status().last == fleet.replica(survivor).status().last


@scenario()
async def test_leader_without_confirmed_majority_refuses_copy(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    for number in range(3):
        if number != leader:
            fleet.processes[number].kill()
    await fleet.order(3, leader)
    assert "may be lost" in (await fleet.copied(3)).may_lose


@scenario()
async def test_copy_to_another_cluster_is_refused(fleet):
    unknown = fleet.processes[3]
    unknown.kill()
    options = Options(wal_segment_mb=1)
    unknown.program = lambda env, transport: CopyProgram(
        env, transport, uuid_of(3), options, "another"
    )
    await fleet.restart(3)
    await fleet.order(3, await fleet.leader(), cluster="another")
    assert isinstance(await fleet.refused(3), Forbidden)
    await nothing_changed(fleet)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", ".", "", "a\0b", "a/b", "twice"])
def test_source_that_offers_files_outside_the_copy_is_refused(name, monkeypatch):
    """Abuse case 16."""
    begin = CopySourceService.begin

    async def offered(self, request):
        answer = await begin(self, request)
        answer.files.extend([pb.CopyFile(name=name, size_bytes=1)] * (1 + (name == "twice")))
        return answer

    monkeypatch.setattr(CopySourceService, "begin", offered)

    @scenario()
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        await fleet.order(3, leader)
        err = await fleet.refused(3)
        assert isinstance(err, Corrupt), err
        assert "files that cannot be" in err.message
        await nothing_changed(fleet)

    steps()


def _facts(metadata, what):
    return b"\xff" if what == "facts" else metadata.SerializeToString()


@pytest.mark.parametrize("what", ["data", "cut", "facts", "offset", "entries", "length"])
def test_copied_bytes_changed_in_transit_are_refused(what, monkeypatch):
    fetch_file, fetch_entries = CopySourceService.fetch_file, CopySourceService.fetch_entries

    async def files(self, request):
        end = 0
        async for chunk in fetch_file(self, request):
            assert isinstance(chunk.body, bytes)
            body, metadata = chunk.body, pb.FileChunk.FromString(bytes(chunk.app_metadata))
            if what == "data":
                body = body[:-1] + bytes([body[-1] ^ 1])
            elif what == "cut":
                body = body[:-1]
            metadata.offset += what == "offset"
            end = metadata.offset + len(body)
            yield FlightData(body=body, app_metadata=_facts(metadata, what))
        if what == "length":
            more = pb.FileChunk(offset=end, crc32c=google_crc32c.value(b"x"))
            yield FlightData(body=b"x", app_metadata=more.SerializeToString())

    async def log(self, request):
        chunk = await fetch_entries(self, request)
        if what == "entries":
            chunk.entries = chunk.entries[:-1]
        return chunk

    monkeypatch.setattr(CopySourceService, "fetch_file", files)
    monkeypatch.setattr(CopySourceService, "fetch_entries", log)

    @scenario()
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        await fill(fleet)
        await fleet.order(3, leader)
        err = await fleet.refused(3)
        assert isinstance(err, Corrupt if what in ("length", "facts") else BadChecksum), err
        await nothing_changed(fleet)

    steps()


@scenario(options=FEW)
async def test_copy_fails_after_source_is_unreachable_for_timeout(fleet):
    await fleet.order(3, 0, address="nowhere:1")
    assert isinstance(await fleet.refused(3), Unavailable)
    assert fleet.progress(3).retries > 3
    await nothing_changed(fleet)


@scenario(options=FEW, servers=5)
async def test_source_refuses_sessions_beyond_limit(fleet):
    leader = await flush(fleet)
    await fleet.order(3, leader)
    await fleet.copied(3)
    await fleet.order(4, leader)
    assert isinstance(await fleet.refused(4), Throttled)
    await add(fleet, 3)
    await fleet.until(
        lambda: fleet.stage(3) is CopyStage.DONE and not fleet.sessions(),
        "the copy is done and its session ended",
    )
    await fleet.order(4, leader)
    await fleet.copied(4)


@scenario()
async def test_copy_is_refused_without_disk_space(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    disk = fleet.processes[3].disk
    disk.faults.capacity_bytes = disk.used_bytes() + 3000
    await fleet.order(3, leader)
    err = await fleet.refused(3)
    assert isinstance(err, OSError)
    await nothing_changed(fleet)
    status = await fleet.ask(3, methods.COPY_STATUS, pb.CopyStatusRequest())
    assert status.copies[0].stage == "FAILED"
    assert "bytes" in status.copies[0].error.message
    disk.faults.capacity_bytes = None
    await fleet.order(3, leader)
    await fleet.copied(3)


@pytest.mark.parametrize("room", [1500, 4000, 9000])
def test_copy_fails_when_disk_fills_during_transfer(room):
    @scenario(options=Options(wal_segment_mb=1, wal_reserve_mb=0, copy_chunk_bytes=700))
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        await fill(fleet)
        disk = fleet.processes[3].disk
        files = fleet.processes[3].env.files
        monstrous = files.free_bytes
        files.free_bytes = lambda path: 1 << 40  # as if the space was taken meanwhile
        disk.faults.capacity_bytes = disk.used_bytes() + room
        await fleet.order(3, leader)
        progress = fleet.progress(3)
        await fleet.until(lambda: progress.stage in (CopyStage.FAILED, CopyStage.WAITING), "ended")
        files.free_bytes = monstrous
        disk.faults.capacity_bytes = None
        if progress.stage is CopyStage.FAILED:
            assert isinstance(progress.error, OSError)
            await nothing_changed(fleet)
            await fleet.order(3, leader)
        await fleet.copied(3)
        await add(fleet, 3)
        await fleet.until(lambda: fleet.stage(3) is CopyStage.DONE, "a member")
        await fleet.settled()
        assert fleet.machine(3).sums == {"k": 40}

    steps()


@scenario()
async def test_source_with_full_disk_reports_failed_flush(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    replica, disk = fleet.replica(leader), fleet.processes[leader].disk
    last, begin = replica.status().last, fleet.host(leader).copies.sessions.begin
    disk.faults.capacity_bytes = disk.used_bytes()
    with pytest.raises(Unavailable, match="No space left"):
        await fleet.as_(leader, begin(GROUP, uuid_of(3), min_index=last.index, force=False))
    assert fleet.sessions() == 0
    disk.faults.capacity_bytes = None
    offer = await fleet.as_(leader, begin(GROUP, uuid_of(3), min_index=last.index, force=False))
    assert offer.flush_op == last
