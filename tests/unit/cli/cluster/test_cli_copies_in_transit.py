"""Copies of tables and journals whose transfer is cut, or whose bytes change in transit."""

from typing import Any

import pytest

from nyala.common.errors import Unavailable
from nyala.copying.service import CopySourceService
from nyala.operate import remote_replicas
from nyala.operate.member_rpcs import CopyFailed
from nyala.wire.flight import FlightData
from tests.unit.cli.support.member_commands import with_scenario
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import refused

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")

CHUNK_BYTES = 200


async def flushed(scenario: Any) -> Any:
    """Let workers write for a while, and flush the leader; return it."""
    await scenario.cluster.loop.delay(2_000_000)
    leader = scenario.leader
    replica = leader.server.host.find(scenario.tablet)
    await leader.run(replica.flush)
    assert replica.machine.data_bytes > 3 * CHUNK_BYTES
    return leader


async def copy(scenario: Any, leader: Any, new: Any) -> Any:
    work = remote_replicas.copy_replica(
        scenario.core, scenario.tablet, scenario.uuid(leader), new.address,
        force=False, notify=lambda words: None,
    )  # fmt: skip
    return await scenario.on(lambda: work)


def test_copy_whose_transfer_is_cut_resumes_without_repeating_a_byte():
    async def work(scenario):
        new, leader = scenario.empty_servers()[0], await flushed(scenario)
        old = scenario.holders()[1]
        sessions, asked = leader.server.host.copies.sessions, []
        read = sessions.read

        async def cut_off(session, name, offset):
            asked.append((name, offset))
            if len(asked) in (2, 4):
                raise Unavailable("the connection is lost")
            return await read(session, name, offset)

        sessions.read = cut_off
        made = await copy(scenario, leader, new)
        assert (made.stage, made.retries) == ("WAITING", 2)
        served = [place for n, place in enumerate(asked, 1) if n not in (2, 4)]
        assert len(set(served)) == len(served) > 2
        await scenario.do("move", scenario.uuid(old), scenario.uuid(new))
        assert scenario.kinds()[new.name] == "voter"

    with_scenario(work, workers=1, copy_chunk_bytes=CHUNK_BYTES)


@pytest.mark.parametrize("what", ["data", "cut"])
def test_bytes_changed_in_transit_are_refused_and_next_copy_is_whole(what, monkeypatch):
    fetch_file = CopySourceService.fetch_file
    damaged: list[bytes] = []

    async def fetched(self, request):
        async for chunk in fetch_file(self, request):
            assert chunk.body is not None
            body = bytes(chunk.body)
            if not damaged and len(body) > 1:
                damaged.append(body)
                body = body[:-1] + bytes([body[-1] ^ 1] if what == "data" else [])
            yield FlightData(body=body, app_metadata=chunk.app_metadata)

    monkeypatch.setattr(CopySourceService, "fetch_file", fetched)

    async def work(scenario):
        new, leader = scenario.empty_servers()[0], await flushed(scenario)
        old = scenario.holders()[1]
        err = await refused(copy(scenario, leader, new))
        assert isinstance(err, CopyFailed)
        assert damaged
        assert scenario.state(new) == ""
        assert (await copy(scenario, leader, new)).stage == "WAITING"
        await scenario.do("move", scenario.uuid(old), scenario.uuid(new))
        assert scenario.kinds()[new.name] == "voter"

    with_scenario(work, workers=1, copy_chunk_bytes=CHUNK_BYTES)
