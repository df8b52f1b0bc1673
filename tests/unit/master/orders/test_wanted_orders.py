"""Orders that failed are shown as waits of an operation only while catalog and reports call for them."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Unavailable
from nyala.common.ids import OpId, ServerUuid
from nyala.master.catalog.actions import (
    AlterTabletAction,
    CancelCopyAction,
    ChangeMembersAction,
    CopyAction,
    CreateTabletAction,
    DeleteTabletAction,
    WitnessAction,
)
from nyala.master.catalog.group_state import Add
from nyala.master.orders.attempts import UnansweredOrders
from nyala.master.services.operations.waits import LeaderView
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.orders.known_tablets import T, known
from tests.unit.master.support.master_helpers import report, server_info

A, B, X = map(ServerUuid, "abx")
RUNNING, DELETED, CREATING = cat.TABLET_RUNNING, cat.TABLET_DELETED, cat.TABLET_CREATING
CONFIG = OpId(2, 5)


def shown(action, state, replica="", *, under_way=False):
    """Return whether a view shows an order that failed, or is under way.

    Args:
        action: the order.
        state: of its tablet, which A leads, with the members a, b and c.
        replica: state of the replica that the order's server has reported; empty: none.
        under_way: it was sent again.
    """
    config = (0, 0) if state == CREATING else (2, 5)
    catalog = known(state, leader="a", term=2, config=config)
    servers = TServers(10**9)
    server = servers.record_heartbeat(pb.HeartbeatRequest(server=server_info(action.server)), 1)
    if replica:
        found = pb.HeartbeatRequest(tablets=[report(T, state=replica)])
        servers.record_report(server, found, 1)
    attempts = UnansweredOrders()
    attempts.begun(action, 1)
    attempts.failed(action, Unavailable("no answer"))
    if under_way:
        attempts.begun(action, 2)
    dispatcher = SimpleNamespace(attempts=attempts)
    term: Any = SimpleNamespace(catalog=catalog, dispatcher=dispatcher)
    return bool(LeaderView(term, servers, 2).orders(T))


@pytest.mark.parametrize(
    ("action", "state", "replica", "wanted"),
    [
        (CreateTabletAction(A, T), CREATING, "", True),
        (CreateTabletAction(X, T), RUNNING, "", False),
        (DeleteTabletAction(A, T), DELETED, "RUNNING", True),
        (DeleteTabletAction(A, T), DELETED, "TOMBSTONED", True),
        (DeleteTabletAction(X, T), RUNNING, "RUNNING", True),
        (DeleteTabletAction(X, T), RUNNING, "TOMBSTONED", False),
        (DeleteTabletAction(A, T), RUNNING, "RUNNING", False),
        (DeleteTabletAction(A, T), DELETED, "", False),
        (AlterTabletAction(A, T), DELETED, "RUNNING", False),
        (AlterTabletAction(A, T), RUNNING, "RUNNING", False),
        (ChangeMembersAction(A, T, CONFIG, Add(X)), RUNNING, "", True),
        (ChangeMembersAction(A, T, OpId(2, 4), Add(X)), RUNNING, "", False),
        (CopyAction(B, T, A), RUNNING, "", True),
        (CopyAction(B, T, A), RUNNING, "RUNNING", False),
        (CopyAction(B, T, X), RUNNING, "", False),
        (CopyAction(X, T, A), RUNNING, "", False),
        (WitnessAction(B, T, A), RUNNING, "", True),
        (WitnessAction(B, T, X), RUNNING, "", False),
        (CancelCopyAction(X, T), RUNNING, "", True),
        (CancelCopyAction(B, T), RUNNING, "", False),
    ],
)
def test_order_that_failed_is_a_wait_while_it_is_called_for(action, state, replica, wanted):
    assert shown(action, state, replica) is wanted


def test_order_under_way_is_a_wait_although_it_is_superseded():
    assert shown(CopyAction(B, T, X), RUNNING, under_way=True)
