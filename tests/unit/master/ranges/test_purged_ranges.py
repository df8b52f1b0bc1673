"""Purge of dropped ranges: not while a reader holds their history, or may hold it as far as masters know."""

import pytest

from nyala.common.hybrid_time import from_micros
from nyala.common.ids import TabletId
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import background
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_levels import ids, reported_versions
from tests.unit.master.support.ddl_operations import altered, put, with_table
from tests.unit.master.support.master_helpers import report, server_info

SECOND = 1_000_000
UNRESPONSIVE = 60 * SECOND
WALL = 10_000 * SECOND
TERM = 7


def dropped():
    """Return a catalog with an expired dropped range on the servers a, b and c, and its tablet."""
    catalog = with_table()
    tablet = ids(catalog)[0]
    put(catalog, altered(catalog, "t", ("drop_range", 0, 10)))
    found = catalog.tablet(TabletId(tablet))
    assert found is not None
    record = found.edit()
    record.dropped_at = from_micros(SECOND)
    catalog.publish(catalog.draft(CatalogPlan((record,))))
    return catalog, tablet


def beat(servers, tablet, name, now_us, *, state="RUNNING", held_ms=0, term=TERM):
    """Record a heartbeat; with a full report of the tablet if there is a term."""
    request = pb.HeartbeatRequest(server=server_info(name), full=True, report_sequence=now_us + 1)
    request.server.hybrid_time = from_micros(WALL)
    made = request.tablets.add()
    made.CopyFrom(report(tablet, state=state))
    if state == "RUNNING":
        made.retired_at, made.held_ms = from_micros(SECOND), held_ms
    server = servers.record_heartbeat(request, now_us)
    if term:
        servers.record_report(server, request, term)


def purges(catalog, servers, now_us, since_us=0):
    due = background.due(catalog, servers, WALL, now_us, 1, TERM, since_us)
    return [o.what for o in due if o.what == "purge range"]


@pytest.mark.row("A16")
def test_new_leader_purges_no_range_before_its_holders_have_reported():
    catalog, tablet = dropped()
    servers = TServers(UNRESPONSIVE)
    for name in "abc":  # to a follower; the report of an earlier term does not count
        beat(servers, tablet, name, 0, term=TERM - 1)
    assert purges(catalog, servers, 0) == []
    beat(servers, tablet, "a", 1)
    beat(servers, tablet, "b", 1)
    assert purges(catalog, servers, 1) == []
    beat(servers, tablet, "c", 2, held_ms=5_000)
    assert purges(catalog, servers, 2) == []
    assert purges(catalog, servers, 1 + 5 * SECOND) == []
    assert purges(catalog, servers, 2 + 5 * SECOND) == ["purge range"]


@pytest.mark.row("A16")
def test_silent_holder_is_waited_for_until_it_counts_as_dead():
    catalog, tablet = dropped()
    servers = TServers(UNRESPONSIVE)
    since = 5 * SECOND
    for now_us in (since, UNRESPONSIVE, since + UNRESPONSIVE - 2):  # no hold is left by these
        beat(servers, tablet, "a", now_us)
        beat(servers, tablet, "b", now_us)
    assert purges(catalog, servers, since + UNRESPONSIVE - 1, since) == []
    assert purges(catalog, servers, since + UNRESPONSIVE, since) == ["purge range"]


@pytest.mark.row("A16")
def test_replica_that_is_being_opened_may_be_held():
    catalog, tablet = dropped()
    servers = TServers(UNRESPONSIVE)
    for name in "ab":
        beat(servers, tablet, name, 0)
    beat(servers, tablet, "c", 0, state="BOOTSTRAPPING")
    assert purges(catalog, servers, 1) == []
    beat(servers, tablet, "c", 2)
    assert purges(catalog, servers, 3) == ["purge range"]


def test_time_of_server_is_not_lowered_by_heartbeat_that_its_answer_has_overtaken():
    """The floor of an added range comes from it: it must not be below the stamps of the reported versions."""
    servers = reported_versions(time_us=SECOND, a={"t": 0})
    (one, *_) = servers.all()
    # as the dispatcher records the answer to an alteration
    one.time = from_micros(3 * SECOND)
    late = pb.HeartbeatRequest(server=server_info("a"))
    late.server.hybrid_time = from_micros(2 * SECOND)
    servers.record_heartbeat(late, 2)
    assert servers.time(10 * SECOND) == from_micros(3 * SECOND)
    late.server.hybrid_time = from_micros(4 * SECOND)
    servers.record_heartbeat(late, 3)
    assert servers.time(10 * SECOND) == from_micros(4 * SECOND)
