"""Replicas copied between real servers: while they are written to, with the source killed, and by hand."""

import pytest

from nyala.common.ids import SYS_CATALOG, TabletId
from nyala.common.options import Options
from nyala.copying.offline import copy_to_directory
from nyala.env.files import SystemFiles
from nyala.replica import instance
from nyala.tablet.tablet import Tablet
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.direct import Direct, refusal
from tests.cluster.storm import wait_equal
from tests.cluster.workload import create, rows
from tests.waiting import wait_until

ROWS = 200_000
RATE_BYTES = 3_000_000
OVER = ("WAITING", "DONE", "FAILED", "CANCELLED")


@pytest.fixture(scope="module")
def four():
    """Four tablet servers: each tablet has one without a replica of it. Copies take seconds."""
    options = {
        "copy_rate_bytes": str(RATE_BYTES),
        "copy_retry_ms": "3000",
        "flush_bytes": "1000000",
    }
    with MiniCluster(tservers=4, options=options) as made:
        yield made
        wait_equal(made)


class Servers:
    """What an operator's tool would ask."""

    def __init__(self, cluster, direct):
        self.cluster, self.direct = cluster, direct

    def ask(self, name, method, request):
        return self.direct.ask(self.cluster.address(name), method, request)

    def uuid(self, name):
        return self.ask(name, methods.SERVER_INFO, pb.ServerInfoRequest()).uuid

    def replica(self, name, tablet):
        found = self.ask(name, methods.LIST_TABLETS, pb.ListTabletsRequest()).tablets
        return next((t for t in found if t.report.tablet_id == tablet), None)

    def start(self, target, source, tablet, **more):
        request = pb.StartCopyRequest(
            destination_uuid=self.uuid(target),
            tablet_id=tablet,
            source_uuid=self.uuid(source),
            source_address=self.cluster.address(source),
            **more,
        )
        return self.ask(target, methods.START_COPY, request).copy

    def progress(self, target, tablet):
        request = pb.CopyStatusRequest(tablet_ids=[tablet])
        return self.ask(target, methods.COPY_STATUS, request).copies[0]

    def until_over(self, target, tablet):
        wait_until(lambda: self.progress(target, tablet).stage in OVER, "the copy is over", 60)
        return self.progress(target, tablet)


@pytest.fixture
def servers(four):
    with Direct() as direct:
        yield Servers(four, direct)


def filled(cluster, name):
    """A table of one tablet; return client and table, and the tablet with its leader."""
    client = cluster.connect()
    table = create(client, name, buckets=1)
    for first in range(0, ROWS, 20_000):
        numbers = list(range(first, first + 20_000))
        table.insert(rows("copied", numbers, numbers, "x" * 20)).raise_for_errors()
    (tablet, leader), *_ = cluster.leaders(name).items()
    return client, table, tablet, leader


def without(cluster, servers, tablet):
    names = [n for n in cluster.names if n.startswith("tserver")]
    return next(n for n in names if servers.replica(n, tablet) is None)


@pytest.mark.row("S1.37")
def test_a_copy_made_while_the_tablet_is_written_to_has_it_all(four, servers):
    client, table, tablet, leader = filled(four, "written")
    with client:
        target = without(four, servers, tablet)
        servers.start(target, leader, tablet)
        written = 0
        while servers.progress(target, tablet).stage not in OVER:
            table.insert(rows("meanwhile", [written], [written])).raise_for_errors()
            written += 1
        progress = servers.until_over(target, tablet)
        assert progress.stage == "WAITING", progress
        assert progress.bytes_done == progress.bytes_total > 1_000_000
        assert written > 10, "writes went on"
        copy, original = servers.replica(target, tablet), servers.replica(leader, tablet)
        assert copy.report.role == "NON_PARTICIPANT"
        assert copy.last_index == progress.last_index <= original.last_index
        wait_until(
            lambda: servers.replica(target, tablet).rows >= ROWS, "it has replayed the log", 20
        )
        four.kill(target)
        four.start(target)
        wait_until(
            lambda: (servers.replica(target, tablet) or pb.TabletStatus()).last_index
            == progress.last_index,
            "a copy outlives its server's death", 30,
        )  # fmt: skip
        assert refusal(servers.start, target, leader, tablet) == "ALREADY_PRESENT"


@pytest.mark.row("S1.37")
def test_a_source_that_is_killed_in_the_middle_leaves_nothing_and_another_is_copied(four, servers):
    client, _table, tablet, leader = filled(four, "killed")
    with client:
        target = without(four, servers, tablet)
        servers.start(target, leader, tablet)
        wait_until(lambda: servers.progress(target, tablet).bytes_done > 1_000_000, "begun", 30)
        four.kill(leader)
        progress = servers.until_over(target, tablet)
        assert progress.stage == "FAILED", progress
        assert progress.error.code == "UNAVAILABLE"
        assert servers.replica(target, tablet) is None
        files = SystemFiles()
        directory = four.data_dir(target)
        assert files.list(f"{directory}/copy") == []
        assert not files.exists(f"{directory}/data/{tablet}")
        wait_until(
            lambda: four.leaders("killed").get(tablet, leader) != leader, "another leads", 30
        )
        servers.start(target, four.leaders("killed")[tablet], tablet)
        assert servers.until_over(target, tablet).stage == "WAITING"
        wait_until(lambda: servers.replica(target, tablet).rows == ROWS, "it has it all", 20)
        four.start(leader)


@pytest.mark.row("S2.7", "S2.10")
def test_a_masters_catalog_is_copied_into_the_directory_of_one_that_does_not_run(four, tmp_path):
    directory = str(tmp_path / "replacement")
    master = four.leader_master()
    with four.connect() as client:
        create(client, "catalogued", buckets=1)

    async def copy(env):
        return await copy_to_directory(
            env, Options(), directory, "master", SYS_CATALOG, four.address(master)
        )

    with Direct() as direct:
        progress = direct.run(copy(direct.env))
    assert progress.last.index > 0
    files = SystemFiles()
    found = instance.decode(files.read(f"{directory}/instance"), "instance")
    assert found.initialised
    assert found.cluster_id
    tablet = Tablet.open(files, f"{directory}/data/{TabletId(SYS_CATALOG)}")
    assert tablet.cut.op.index <= progress.last.index
    tablet.close()
