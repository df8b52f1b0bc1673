"""Tablets from PREPARING to RUNNING, or to REPLACED: plans, time-outs, and invisible states."""

from functools import partial
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import NO_OP, ServerUuid, TabletId
from nyala.master.catalog.actions import CreateTabletAction, DeleteTabletAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet, TableState, TabletState
from nyala.master.ddl import create_table, creation_timeouts, replace_tablet, tablet_report
from nyala.master.ddl.creation_timeouts import Creations
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_operations import (
    CASES,
    NEW_COLUMN,
    Case,
    altered,
    plan_inputs,
    put,
    rows_of,
    with_table,
)
from tests.unit.master.support.ddl_plans import Disk, Master
from tests.unit.master.support.master_helpers import report

TIMEOUT_US = 1_000_000
unsafe_plan: Any = partial(replace_tablet.unsafe_plan, time=7)


def take(catalog, plan):
    catalog.publish(catalog.draft(plan))


def shown(catalog, tablet, server, **more):
    take(catalog, tablet_report.plan(catalog, server, [report(tablet.id, **more)]))


class Onlooker(Master):
    """Records the visible state while the batch was in flight."""

    async def replicate(self, rows):
        self.seen = rows_of(self.memory.catalog)
        self.batch = list(rows)
        await super().replicate(rows)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.row("S0.63", "S0.65")
def test_uncommitted_batch_is_invisible_and_no_partial_table_is_written(
    case: Case,
):
    before = case.before()
    disk = Disk(rows_of(before))
    master = Onlooker(disk)
    master.carry_out(case.operation(before))
    assert master.seen == rows_of(before)
    for item in map(parse, master.batch):
        state: Any = getattr(item, "state", None)
        assert state not in (TableState.UNKNOWN, TableState.PREPARING)
        assert state not in (TabletState.UNKNOWN, TabletState.PREPARING)


@pytest.mark.row("S0.67", "S0.68")
def test_create_table_writes_one_batch_then_sends_orders():
    create = CASES[0]
    disk = Disk(rows_of(create.before()))
    master = Onlooker(disk)
    master.carry_out(create.operation(create.before()))
    assert disk.batches == 1
    items = [item for item in map(parse, master.batch) if item is not None]
    tablets = [i for i in items if isinstance(i, CatalogTablet)]
    (table,) = (i for i in items if isinstance(i, CatalogTable))
    assert (table.state, {t.state for t in tablets}) == (TableState.RUNNING, {TabletState.CREATING})
    assert all(len({*t.members}) == 3 for t in tablets)
    wanted = [CreateTabletAction(server, t.id) for t in tablets for server in t.members]
    assert master.sent == wanted
    record = tablets[0].edit()
    with pytest.raises(AssertionError, match="has servers already"):
        create_table.assign(record, [ServerUuid("a")], plan_inputs())


@pytest.mark.row("S0.70", "S0.71", "S0.72")
def test_replace_tablet_writes_one_batch_and_new_tablet_has_current_schema():
    catalog = with_table(led=False)
    put(catalog, altered(catalog, "t", NEW_COLUMN))
    late, on_time = catalog.creating()
    shown(catalog, late, "a", term=3)
    shown(catalog, on_time, "b", leader="b", term=1)
    (operation,) = creation_timeouts.replacements(catalog, [late, on_time], plan_inputs(4))
    plan = operation.plan(catalog)
    old, new = plan.tablets
    assert (old.id, old.state, old.replaced_by) == (late.id, TabletState.REPLACED.value, new.id)
    assert (new.state, new.partition) == (TabletState.CREATING.value, old.partition)
    assert (new.consensus.config_index, new.consensus.term, new.consensus.leader) == (0, 0, "")
    assert [m.uuid for m in new.consensus.members] != []
    assert not new.reported_by
    assert (old.first_schema_version, new.first_schema_version, new.attempt) == (0, 1, 1)
    deleted = [a.server for a in plan.actions if a == DeleteTabletAction(a.server, late.id)]
    made = [a for a in plan.actions if isinstance(a, CreateTabletAction)]
    assert sorted(deleted) == sorted(late.members)
    assert [a.server for a in made] == [m.uuid for m in new.consensus.members]
    take(catalog, plan)
    assert {t.id for t in catalog.tablets_of(late.table_id)} == {new.id, on_time.id}
    found = catalog.successor(late.id)
    assert found is not None
    assert (found.id, found.config_id) == (new.id, NO_OP)
    assert not operation.plan(catalog).writes, "a repetition has no effect"


@pytest.mark.row("S0.71")
def test_replace_tablet_with_too_few_servers_changes_nothing():
    catalog = with_table(led=False)
    (tablet, _), rows = catalog.creating(), rows_of(catalog)
    two = plan_inputs(4, servers="ab")
    assert creation_timeouts.replacements(catalog, [tablet], two) == []
    with pytest.raises(
        InvalidArgument, match=r"3 replicas need 3 live tablet servers, and 2 are live"
    ):
        replace_tablet.plan(catalog, tablet.table_id, [tablet.id], two)
    assert rows_of(catalog) == rows


def test_replacements_are_batched_by_hundred_tablets_per_table():
    catalog = with_table(led=False)
    tablet = catalog.creating()[0]
    wanted = creation_timeouts.replacements(catalog, [tablet] * 250, plan_inputs())
    assert [len(o.scope(catalog).tablets) for o in wanted] == [100, 100, 50]
    assert all(o.scope(catalog).tables == (tablet.table_id,) for o in wanted)


@pytest.mark.row("S0.69")
def test_creation_timeout_waits_while_orders_are_pending_or_replicas_appear():
    catalog, waiting, ordered = with_table(led=False), Creations(TIMEOUT_US), ["a", "b"]
    one, two = catalog.creating()

    def late(now_us):
        return [t.id for t in waiting.timed_out(catalog, ordered, now_us)]  # type: ignore[arg-type]

    assert late(0) == late(5 * TIMEOUT_US) == [], "no order was sent yet"
    for server in ordered:
        for tablet in (one, two):
            waiting.record_attempt(tablet.id, ServerUuid(server))
    assert late(6 * TIMEOUT_US - 1) == []
    shown(catalog, two, "a")
    assert late(6 * TIMEOUT_US) == [one.id], "an order to c was never attempted"
    assert late(7 * TIMEOUT_US - 1) == [one.id]
    assert late(7 * TIMEOUT_US) == [one.id, two.id]
    shown(catalog, one, "a", leader="a", term=1)
    assert late(8 * TIMEOUT_US) == [two.id], "the other tablet is RUNNING"


def test_creation_timeout_doubles_with_each_attempt():
    catalog, waiting = with_table(led=False), Creations(TIMEOUT_US)
    tablet = catalog.creating()[0]
    record = tablet.edit()
    record.attempt = 3
    take(catalog, CatalogPlan((record,)))
    assert waiting.timed_out(catalog, [], 0) == []
    assert tablet.id not in [t.id for t in waiting.timed_out(catalog, [], 8 * TIMEOUT_US - 1)]
    assert tablet.id in [t.id for t in waiting.timed_out(catalog, [], 8 * TIMEOUT_US)]


@pytest.mark.row("S1.44")
def test_tablet_with_working_replica_is_replaced_only_with_force():
    catalog = with_table()
    tablet = catalog.tablets_of(catalog.require("t").id)[0]
    asked = pb.ReplaceTabletRequest(tablet_id=tablet.id)
    with pytest.raises(InvalidArgument, match="are on a, b: recover it from them"):
        unsafe_plan(catalog, asked, plan_inputs(4), ["a", "b"])
    asked.force = True
    plan = unsafe_plan(catalog, asked, plan_inputs(4), ["a", "b"])
    assert [t.attempt for t in plan.tablets] == [0, 0]
    take(catalog, plan)
    assert not unsafe_plan(catalog, asked, plan_inputs(5), ["a"]).writes, (
        "a repetition has no effect"
    )
    with pytest.raises(
        InvalidArgument, match="3 replicas need 3 live tablet servers, and 2 are live"
    ):
        unsafe_plan(
            catalog,
            pb.ReplaceTabletRequest(tablet_id=plan.tablets[1].id),
            plan_inputs(4, servers="ab"),
            [],
        )


def test_replacing_deleted_or_unknown_tablet_is_refused():
    drop = next(c for c in CASES if c.name == "drop")
    catalog = drop.before()
    tablet = next(iter(catalog.tablets()))
    put(catalog, drop.operation(catalog))
    for unknown in (tablet.id, TabletId("no such"), TabletId("")):
        with pytest.raises(NotFound, match="no table has a tablet"):
            unsafe_plan(
                catalog, pb.ReplaceTabletRequest(tablet_id=unknown, force=True), plan_inputs(), []
            )
