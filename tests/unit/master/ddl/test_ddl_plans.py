"""Four tests for each operation of the catalog, generated from its plan.

Success; each step executed twice; a crash at each step, which leaves all of it or nothing and after which a
repetition completes it; a second crash at each step of that recovery.
"""

import pytest

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.common.partitioning.partition import partitions
from nyala.master.catalog.actions import AlterTabletAction, CreateTabletAction, DeleteTabletAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl.alter_table import MAX_OPERATIONS
from nyala.master.ddl.creation_timeouts import MAX_DOUBLINGS, Creations
from nyala.master.orders import reconcile
from nyala.master.tservers import TServer
from nyala.wire import convert
from tests.unit.master.support.ddl_operations import (
    CASES,
    altered,
    loaded,
    put,
    rows_of,
    with_table,
)
from tests.unit.master.support.ddl_plans import Died, Disk, Master
from tests.unit.master.support.master_helpers import server_info

every = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
STEPS = ("refused", "lost", "unknown", "crashed", "published")
"""Step at which the master fails: before it proposes; before or after its batch is durable; before or
after it publishes."""


def start(case):
    before = case.before()
    return before, Disk(rows_of(before))


def after(case):
    """Return the rows after success, and the answer."""
    before, disk = start(case)
    plan = Master(disk).carry_out(case.operation(before))
    return disk.rows, plan


@every
@pytest.mark.row("S0.61", "S3.4")
def test_ddl_plan_writes_one_batch_and_memory_equals_disk(case):
    before, disk = start(case)
    master = Master(disk)
    plan = master.carry_out(case.operation(before))
    assert disk.batches == 1
    assert plan.writes
    assert list(master.sent) == list(plan.actions)
    assert rows_of(master.memory.catalog) == disk.rows
    names = [t.name for t in master.memory.catalog.tables()]
    assert len(names) == len(set(names))
    for table in master.memory.catalog.tables():
        schema = convert.schema_from_proto(table.spec.schema)
        wanted = partitions(schema, convert.partition_schema_from_proto(table.spec.partition))
        tablets = master.memory.catalog.current_of(table.id)
        found = [convert.partition_from_proto(t.record.partition) for t in tablets]
        assert sorted(found, key=repr) == sorted(wanted, key=repr), "one tablet for each range"
    again = loaded(disk.rows)
    assert [t.name for t in again.tables()] == names
    assert [t.id for t in again.altering()] == [t.id for t in master.memory.catalog.altering()]
    assert [t.id for t in again.recallable()] == [t.id for t in master.memory.catalog.recallable()]


@every
def test_each_ddl_step_is_idempotent(case):
    before, disk = start(case)
    operation = case.operation(before)
    master = Master(disk)
    plan = master.carry_out(operation)
    kept = dict(disk.rows)
    again = master.carry_out(operation)
    assert not again.writes, "a repetition has no effect"
    assert again.answer in (plan.answer, None)
    draft = master.memory.catalog.draft(plan)
    master.memory.catalog.publish(draft)
    master.memory.catalog.publish(draft)
    assert rows_of(master.memory.catalog) == disk.rows == kept
    elsewhere = Master(disk).carry_out(operation)
    assert not elsewhere.writes, "a repetition at the next leader has no effect"
    assert elsewhere.answer in (plan.answer, None)


@every
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.row("S0.51", "S0.58", "S0.40")
def test_crash_at_each_ddl_step_is_atomic_and_retry_completes(case, step):
    whole, done = after(case)
    before, disk = start(case)
    untouched = dict(disk.rows)
    master = Master(disk, step)
    with pytest.raises((NyalaError, Died)):
        master.carry_out(case.operation(before))
    assert disk.rows == (untouched if step in ("refused", "lost") else whole)
    if step == "refused":
        assert not master.dropped
        assert rows_of(master.memory.catalog) == untouched, "dropped without a visible change"
    elif step != "published":
        assert master.dropped, "memory is dropped, since it may differ from the disk"
    assert not master.sent
    plan = Master(disk).carry_out(case.operation(before))
    assert disk.rows == whole
    assert plan.answer in (done.answer, None)


@every
@pytest.mark.row("S0.37", "S0.53", "S0.62")
def test_ddl_recovery_interrupted_at_each_step_sends_every_order(case):
    """Two leaders crash before an order is sent; the third derives all orders."""
    before, disk = start(case)
    operation = case.operation(before)
    with pytest.raises(Died):
        Master(disk, "published").carry_out(operation)
    _, done = after(case)
    replicas: dict[str, dict[TabletId, str]] = {}
    for tablet in before.tablets():
        for server in tablet.record.reported_by:
            replicas.setdefault(server, {})[tablet.id] = "RUNNING"
    for _ in range(2):
        servers = []
        for name in "abc":
            server = TServer(server_info(name), 0)
            server.replicas = dict(replicas.get(name, {}))
            servers.append(server)
        derived = reconcile.orders_for(loaded(disk.rows), servers)
        due = [a for a in done.actions if not _without_effect(a, replicas)]
        assert [a for a in due if a not in derived] == []


def _without_effect(action, replicas):
    exists = TabletId(action.tablet) in replicas.get(action.server, {})
    if isinstance(action, CreateTabletAction):
        return exists
    if isinstance(action, AlterTabletAction):
        return not exists
    assert isinstance(action, DeleteTabletAction)
    return not exists


def test_dropping_a_range_locks_the_tablets_of_its_table():
    catalog = with_table()
    tablets = tuple(t.id for t in catalog.tablets())
    scope = altered(catalog, "t", ("drop_range", 0, 10)).scope(catalog)
    assert scope.tablets == tablets
    assert not altered(catalog, "t", ("set_owner", "x")).scope(catalog).tablets


def test_record_of_a_table_keeps_a_limited_number_of_operations():
    catalog = with_table()
    for sequence in range(1, MAX_OPERATIONS + 20):
        put(catalog, altered(catalog, "t", ("set_owner", f"o{sequence}"), sequence=sequence))
    kept = [o.sequence for o in catalog.require("t").record.altered_by]
    assert kept == list(range(20, MAX_OPERATIONS + 20))


def test_creation_timeout_stops_to_double():
    catalog, timeout_us = with_table(led=False), 1_000_000
    records = [t.edit() for t in catalog.tablets()]
    for record in records:
        record.attempt = 50
    catalog.publish(catalog.draft(CatalogPlan(tuple(records))))
    creations = Creations(timeout_us)
    assert not creations.timed_out(catalog, [], 0)
    assert not creations.timed_out(catalog, [], (timeout_us << MAX_DOUBLINGS) - 1)
    assert len(creations.timed_out(catalog, [], timeout_us << MAX_DOUBLINGS)) == len(records)
