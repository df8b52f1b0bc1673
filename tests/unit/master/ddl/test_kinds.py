"""Journals in the catalog: their definitions, and requests for tables that refuse them."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import AlreadyPresent, BadVersion, InvalidArgument, NotFound
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.partitioning.partition import TabletPartition
from nyala.master.catalog import queries
from nyala.master.catalog.actions import AlterTabletAction, CreateTabletAction
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import table_row
from nyala.master.catalog.records.tables import TableState
from nyala.master.ddl import (
    alter_table,
    create_table,
    creation_timeouts,
    drop_table,
    recall_table,
    tablet_report,
)
from nyala.master.ddl.replace_tablet import unsafe, unsafe_plan
from nyala.master.orders import reconcile
from nyala.master.services import inspection
from nyala.master.table_quotas import TableQuotas
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_operations import (
    CLIENT,
    journal_request,
    loaded,
    plan_inputs,
    put,
    rows_of,
    with_table,
)
from tests.unit.master.support.master_helpers import report

Step = pb.AlterStep
FENCE = pb.Fence(catalog_incarnation="i", term=1)
OPERATION = pb.OperationId(client=CLIENT, sequence=9)


def with_journal(**more: Any) -> Any:
    """A catalog with the table `t` and the journal `ops`, both RUNNING."""
    catalog = with_table()
    put(catalog, create_table.operation(journal_request(**more), plan_inputs(8)))
    for server in "abc":
        reports = [report(tablet(catalog).id, leader="a", term=1)]
        plan = tablet_report.plan(catalog, ServerUuid(server), reports)
        catalog.publish(catalog.draft(plan))
    return catalog


def tablet(catalog: Any) -> Any:
    (found,) = catalog.tablets_of(catalog.require("ops").id)
    return found


def altered(catalog: Any, *steps: Any) -> Any:
    """Alter the journal; return its new state."""
    request = pb.AlterTableRequest(name="ops", kind=1, steps=steps)
    return catalog.table(put(catalog, alter_table.operation(request, plan_inputs(3))))


def listed(catalog: Any, **wanted: Any) -> list[tuple[str, int]]:
    answer = queries.list_tables(catalog, pb.ListTablesRequest(**wanted))
    return [(t.name, t.kind) for t in answer.tables]


def test_journal_is_created_with_one_tablet_of_its_kind():
    catalog = loaded(rows_of(with_journal(options={"journal_bytes": "4096"}, comment="x")))
    journal, only = catalog.require("ops"), tablet(catalog)
    assert (journal.kind.name, journal.version, journal.spec.comment) == ("journal", 0, "x")
    assert convert.partition_from_proto(only.record.partition) == TabletPartition()
    fresh = with_table()
    put(fresh, create_table.operation(journal_request(), plan_inputs(8)))
    order = CreateTabletAction(ServerUuid("a"), tablet(fresh).id)
    request: Any = reconcile.create_request(fresh, order, FENCE)
    assert (request.kind, request.table_name, len(request.members)) == (1, "ops", 3)
    assert not request.schema.columns


def test_tables_and_journals_share_one_space_of_names():
    catalog = with_journal()
    with pytest.raises(AlreadyPresent, match="a table 't' exists already"):
        put(catalog, create_table.operation(journal_request("t"), plan_inputs()))
    with pytest.raises(AlreadyPresent, match="a journal 'ops' exists already"):
        put(catalog, create_table.operation(journal_request("ops"), plan_inputs()))
    with pytest.raises(AlreadyPresent, match="a table 't' exists already"):
        altered(catalog, Step(rename_table="t"))


def test_journal_is_altering_until_its_tablet_has_the_definition():
    catalog = with_journal()
    limit = Step(option=Step.Text(name="journal_bytes", text="4096"))
    journal = altered(catalog, Step(rename_table="work"), limit)
    assert (journal.name, journal.version, journal.state) == ("work", 1, TableState.ALTERING)
    (only,) = catalog.tablets_of(journal.id)
    order = AlterTabletAction(ServerUuid("a"), only.id)
    request: Any = reconcile.alter_request(catalog, order, FENCE)
    assert (request.table_name, request.schema.version) == ("work", 1)
    assert dict(request.options) == {"journal_bytes": "4096"}
    assert not alter_table.is_finished(catalog, journal, lambda _: 0)
    put(catalog, alter_table.finish(journal, lambda _: 1))
    assert catalog.table(journal.id).state is TableState.RUNNING


@pytest.mark.parametrize(
    "step", [Step(table_comment="x"), Step(owner="x"), Step(replicas=1)], ids=str
)
def test_alterations_irrelevant_to_servers_keep_journal_version(step):
    journal = altered(with_journal(), step)
    assert (journal.version, journal.state) == (0, TableState.RUNNING)


TABLES_ONLY = [
    Step(add_column=pb.Column(name="n", type="int32", nullable=True)),
    Step(drop_column="v"),
    Step(rename_column=Step.Rename(name="v", new_name="w")),
    Step(set_default=Step.Value(name="v")),
    Step(allow_nulls="v"),
    Step(column_comment=Step.Text(name="v", text="x")),
    Step(add_range=pb.RangePartition()),
    Step(drop_range=pb.RangePartition()),
]


@pytest.mark.parametrize("step", TABLES_ONLY, ids=lambda s: s.WhichOneof("step"))
def test_column_and_range_steps_of_journal_are_refused_by_name(step):
    with pytest.raises(InvalidArgument, match=f"the step {step.WhichOneof('step')} is for tables"):
        altered(with_journal(), Step(owner="x"), step)


def test_request_for_another_kind_is_refused():
    catalog = with_journal()
    means_a_table = "'ops' is a journal, not a table; "
    with pytest.raises(
        InvalidArgument, match=means_a_table + r"open it with client.journal\('ops'\)"
    ):
        put(catalog, alter_table.operation(
            pb.AlterTableRequest(name="ops", steps=[Step(owner="x")]), plan_inputs()))  # fmt: skip
    with pytest.raises(InvalidArgument, match=means_a_table + r"drop it with client.drop_journal"):
        put(catalog, drop_table.operation(pb.DropTableRequest(name="ops"), 5))
    drop = pb.DropTableRequest(name="ops", kind=1, reserve_seconds=60, operation=OPERATION)
    dropped = put(catalog, drop_table.operation(drop, 5))
    assert put(catalog, drop_table.operation(drop, 6)) == dropped, "a repetition has no effect"
    with pytest.raises(InvalidArgument, match=means_a_table):
        put(catalog, recall_table.operation(pb.RecallTableRequest(id=dropped)))
    with pytest.raises(InvalidArgument, match=means_a_table):
        put(catalog, drop_table.operation(pb.DropTableRequest(id=dropped), 7))
    assert (
        put(catalog, recall_table.operation(pb.RecallTableRequest(id=dropped, kind=1))) == dropped
    )
    assert catalog.require("ops").live


@pytest.mark.parametrize(("kind", "name"), [(0, "table"), (1, "journal")])
def test_recall_of_unknown_id_names_the_kind_and_its_list(kind, name):
    with pytest.raises(NotFound, match=f"no {name} has the id 'x'.*nyala {name} list --dropped"):
        put(with_journal(), recall_table.operation(pb.RecallTableRequest(id="x", kind=kind)))


def test_lists_and_errors_name_one_kind_or_all():
    catalog = with_journal()
    assert listed(catalog) == [("t", 0)]
    assert listed(catalog, kind=1) == [("ops", 1)]
    assert listed(catalog, all_kinds=True) == [("ops", 1), ("t", 0)]
    assert listed(catalog, all_kinds=True, name_contains="o") == [("ops", 1)]
    with pytest.raises(NotFound, match=r"no table 'x'; the tables are: t \["):
        put(catalog, drop_table.operation(pb.DropTableRequest(name="x"), 5))
    with pytest.raises(NotFound, match=r"no journal 'x'; the journals are: ops \["):
        put(catalog, drop_table.operation(pb.DropTableRequest(name="x", kind=1), 5))
    drop = pb.DropTableRequest(name="ops", kind=1, reserve_seconds=60)
    put(catalog, drop_table.operation(drop, 5))
    assert listed(catalog, dropped=True) == []
    assert listed(catalog, dropped=True, kind=1) == [("ops", 1)]
    with pytest.raises(NotFound, match="no journal 'x'; the cluster has no journals yet"):
        put(catalog, drop_table.operation(pb.DropTableRequest(name="x", kind=1), 5))


def test_lost_journal_is_replaced_by_force_only_and_keeps_its_id_sequence():
    catalog = with_journal()
    only = tablet(catalog)
    request = pb.ReplaceTabletRequest(tablet_id=only.id)
    with pytest.raises(InvalidArgument, match="the whole journal 'ops'"):
        unsafe_plan(catalog, request, plan_inputs(4), [], 77)
    request.force = True
    put(catalog, unsafe(request, plan_inputs(4), [], 77))
    new = tablet(catalog)
    assert new.id != only.id
    order: Any = reconcile.create_request(
        catalog, CreateTabletAction(new.awaited[0], new.id), FENCE
    )
    assert (order.floor, order.kind) == (77, 1)
    row = next(t for t in catalog.tablets() if t.table_id == catalog.require("t").id)
    asked = pb.ReplaceTabletRequest(tablet_id=row.id)
    assert unsafe_plan(catalog, asked, plan_inputs(4), [], 77).tablets[1].floor == 0, (
        "a tablet of a table has no lower bound"
    )


def test_journal_without_leader_is_placed_again():
    catalog = with_table()
    put(catalog, create_table.operation(journal_request(), plan_inputs(8)))
    old = tablet(catalog)
    (replacement,) = creation_timeouts.replacements(catalog, [old], plan_inputs(4))
    put(catalog, replacement)
    assert tablet(catalog).record.attempt == 1
    assert catalog.successor(TabletId(old.id)) == tablet(catalog)


def test_pages_and_maps_show_kind():
    catalog = with_journal()
    page = inspection.catalog_page(SimpleNamespace(catalog=catalog, quotas=TableQuotas(catalog)))  # type: ignore[arg-type]
    assert [(row[0], row[1]) for row in page.rows] == [("t", "table"), ("ops", "journal")]


def test_unknown_kind_in_catalog_is_bad_version():
    record = with_table().require("t").edit()
    record.spec.kind = 2
    with pytest.raises(BadVersion, match=r"is of a newer release: .* kind 2"):
        parse(table_row(record))
