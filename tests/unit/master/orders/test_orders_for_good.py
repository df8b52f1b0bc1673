"""Tombstones of tablets that are deleted in the catalog go; those of live tablets stay."""

import pytest

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import DeleteTabletAction
from nyala.master.orders import reconcile
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.orders.known_tablets import FENCE, T, known
from tests.unit.master.support.master_helpers import server_info

A = ServerUuid("a")
ORDER = DeleteTabletAction(A, T)


def reported(*reports, full=True):
    """Return the servers known to a master after a report of server `a`."""
    servers = TServers(1_000_000)
    record(servers, *reports, full=full)
    return servers


def record(servers, *reports, full=False):
    beat = pb.HeartbeatRequest(server=server_info("a"), full=full, tablets=reports)
    servers.record_report(servers.record_heartbeat(beat, 1), beat, 4)


def state(name):
    return pb.TabletReport(tablet_id=T, state=name)


@pytest.mark.parametrize("kept", [cat.TABLET_DELETED, cat.TABLET_REPLACED])
def test_tombstone_of_deleted_tablet_is_ordered_to_go_until_it_is_reported_gone(kept):
    made, servers = known(kept), reported(state("TOMBSTONED"))
    (server,) = servers.all()
    assert reconcile.orders_for(made, [server]) == [ORDER]
    assert reconcile.after_report(made, server, [T]) == [ORDER]
    order = reconcile.delete_request(made, ORDER, FENCE)
    assert order is not None
    assert order.for_good
    record(servers, state("DELETED"))
    assert not reconcile.orders_for(made, [server])
    assert not reconcile.after_report(made, server, [T])


def test_new_full_report_replaces_the_tombstones_known():
    servers = reported(state("TOMBSTONED"))
    record(servers, full=True)
    assert not servers.all()[0].tombstones


@pytest.mark.parametrize("kept", [cat.TABLET_CREATING, cat.TABLET_RUNNING, cat.TABLET_DROPPED])
def test_tombstone_of_tablet_that_exists_stays(kept):
    made = known(kept, config=(2, 7))
    assert not reconcile.orders_for(made, reported(state("TOMBSTONED")).all())
    moved = reconcile.delete_request(made, DeleteTabletAction(ServerUuid("x"), T), FENCE)
    assert moved is not None
    assert (moved.for_good, moved.compare_config) == (False, True)


def test_tombstone_of_unknown_tablet_stays():
    stranger = pb.TabletReport(tablet_id="stranger", state="TOMBSTONED")
    servers = reported(stranger).all()
    assert servers[0].tombstones == {TabletId("stranger"): None}
    assert not reconcile.orders_for(known(cat.TABLET_RUNNING, config=(2, 7)), servers)
