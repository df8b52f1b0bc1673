"""Valid and invalid definitions of tables, and the plans of creating and dropping one. Pure."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.ddl import create_table, drop_table
from nyala.master.ddl.create_table import PlanInputs
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import value_to_ipc
from tests.unit.master.support.master_create import broken, key, piece
from tests.unit.master.support.master_helpers import create_request, server_info


def plan_inputs(servers="abc", seed=1, max_tablets=100):
    live = [server_info(name) for name in servers]
    return PlanInputs(live, random.Random(seed), 5, max_tablets, 3)


def made(catalog, request, **changed):
    plan = create_table.plan(catalog, request, plan_inputs(**changed))
    catalog.publish(catalog.draft(plan))
    return plan


def drop(catalog, name, sequence=0):
    request = pb.DropTableRequest(name=name)
    if sequence:
        request.operation.client, request.operation.sequence = b"c" * 16, sequence
    plan = drop_table.plan(catalog, request, 6)
    catalog.publish(catalog.draft(plan))
    return plan


@pytest.mark.row("S0.4")
def test_create_table_plans_tablets_with_initial_configuration():
    plan = made(Catalog(), create_request("t", 4))
    (table,) = plan.tables
    assert (table.spec.name, len(plan.tablets)) == ("t", 4)
    assert [list(t.partition.buckets) for t in plan.tablets] == [[0], [1], [2], [3]]
    for tablet in plan.tablets:
        assert tablet.table_id == table.id == plan.answer
        members = tablet.consensus.members
        assert [m.uuid for m in members] == ["a", "b", "c"]
        assert next((m.address, m.peer_address, m.voter) for m in members) == ("a:1", "a:2", True)
        assert (tablet.consensus.config_term, tablet.consensus.config_index) == (0, 0)
    assert len({t.id for t in plan.tablets} | {table.id}) == 5
    assert len(plan.actions) == 12


def test_too_few_servers_names_both_numbers():
    with pytest.raises(
        InvalidArgument, match="3 replicas need 3 live tablet servers, and 2 are live"
    ):
        made(Catalog(), create_request("t"), servers="ab")


def test_create_table_waits_only_for_servers_that_open_replicas():
    few = replace(plan_inputs("ab"), opening=1)
    with pytest.raises(Unavailable, match="2 are ready, and 1 is starting"):
        create_table.plan(Catalog(), create_request("t"), few)
    fewer = replace(plan_inputs("a"), opening=1)
    with pytest.raises(InvalidArgument, match="3 live tablet servers, and 2 are live"):
        create_table.plan(Catalog(), create_request("t"), fewer)


def test_create_table_without_partitioning_makes_one_tablet_with_default_replicas():
    request = create_request("t")
    request.table.ClearField("partition")
    request.table.replicas = 0
    plan = made(Catalog(), request)
    assert len(plan.tablets) == 1
    assert plan.tables[0].spec.replicas == 3
    assert len(plan.tablets[0].consensus.members) == 3


@pytest.mark.row("S0.50", "S0.74", "S0.47")
def test_dropped_table_name_is_reusable_with_new_id():
    catalog = Catalog()
    first = made(catalog, create_request("t", 2))
    with pytest.raises(AlreadyPresent, match=f"id {first.answer}"):
        made(catalog, create_request("t"))
    dropped = drop(catalog, "t")
    assert [t.state for t in dropped.tables] == [4]
    assert [t.state for t in dropped.tablets] == [5, 5]
    assert len(dropped.actions) == 6
    assert all(isinstance(a, DeleteTabletAction) for a in dropped.actions)
    second = made(catalog, create_request("t"), seed=2)
    assert second.answer != first.answer
    assert first.answer is not None
    assert catalog.table(first.answer) is not None, "the table's record is kept"
    assert not catalog.tablets_of(first.answer)


def test_drop_table_sends_delete_to_every_server_that_reported_a_replica():
    catalog = Catalog()
    plan = made(catalog, create_request("t"))
    record = plan.tablets[0]
    record.reported_by.extend(["b", "x"])
    catalog.publish(catalog.draft(plan.__class__(tablets=(record,))))
    tablet = TabletId(record.id)
    assert drop(catalog, "t").actions == tuple(
        DeleteTabletAction(ServerUuid(s), tablet) for s in ("a", "b", "c", "x")
    )


def test_repeated_operation_has_no_effect_and_the_same_answer():
    catalog = Catalog()
    request = create_request("t")
    request.operation.client, request.operation.sequence = b"c" * 16, 1
    first = made(catalog, request)
    again = made(catalog, request)
    assert (again.answer, again.writes) == (first.answer, False)
    assert drop(catalog, "t", 2).writes
    assert drop(catalog, "t", 2).answer == first.answer
    assert not drop(catalog, "t", 2).writes
    assert made(catalog, request).answer == first.answer, (
        "a repetition after the drop has the same answer"
    )
    with pytest.raises(NotFound, match="no table 't'; the cluster has no tables yet"):
        drop(catalog, "t", 3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (broken(name=""), "table name ''"),
        (broken(name="x" * 257), "1 to 256 bytes"),
        (broken(name="a\nb"), "printable"),
        (broken(name="a\0b"), "printable"),
        (broken(name="a\x1b[2Jb"), "printable"),
        (broken(name="a\u202eb"), "printable"),  # what follows is shown from right to left
        (broken(replicas=9), "9 replicas; a table has an odd number of them from 1 to 7"),
        (broken(replicas=2), "2 replicas; a table has an odd number of them"),
        (broken(options={"colour": "red"}), "no table option 'colour'; the options are: compression"),
        (broken(options={"compression": "rar"}), "choose one of"),
        (broken(comment="x" * 70_000), "comment is over"),
        (broken(schema__columns=[]), "key"),
        (broken(schema__key_ids=[]), "key"),
        (broken(schema__key_ids=[9]), "key"),
        (broken(schema__key_ids=[1]), "key"),
        (broken(schema__columns__0__type="int7"), "unknown column type 'int7'"),
        (broken(schema__columns__0__type="double"), "cannot be part of the primary key"),
        (broken(schema__columns__0__name="v"), "twice"),
        (broken(schema__columns__0__name="_op"), "do not begin with '_'"),
        (broken(schema__columns__1__id=7, schema__next_column_id=8), "ids 0, 1, 2"),
        (broken(schema__columns__0__nullable=True), "not nullable|nullable"),
        (broken(schema__columns__1__read_default_ipc=value_to_ipc(pa.scalar(""))), "older than a column"),
        (broken(schema__version=4), "schema version 0"),
        (broken(schema__next_column_id=1), "next column id 1 is not above 1"),
        (broken(schema__next_column_id=3), "next column id 2, not 0 and 3"),
        (broken(partition__version=9), "partition version 9"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=101)]), "makes 101 tablets"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=0)]), "makes 0 tablets"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=2**32 - 1)] * 8), "tablets"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[1], buckets=2)]), "distinct key columns"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[], buckets=2)]), "distinct key columns"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=2)] * 2), "two hash levels"),
        (broken(partition__hash=[pb.HashLevel(column_ids=[0], buckets=1)] * 9), "9 hash levels"),
        (broken(partition__range_column_ids=[1]), "distinct key columns"),
        (broken(partition__ranges=[pb.RangePartition()]), "ranges without range columns"),
    ],
)  # fmt: skip
def test_invalid_definition_names_its_field_and_creates_nothing(request_, message):
    catalog = Catalog()
    with pytest.raises(InvalidArgument, match=message):
        made(catalog, request_)
    assert not catalog.tables()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([piece(key(5), key(5))], "a range is empty"),
        ([piece(key(0), key(5)), piece(key(4), key(9))], "overlap"),
        ([piece(key(5), key(9)), piece(key(0), key(1))], "ascending"),
        ([piece(key(5), None), piece(key(9), None)], "overlap"),
        ([piece(b"short", None)], "no key of its columns"),
    ],
)
def test_bad_ranges_are_refused(ranges, message):
    request = broken(partition__range_column_ids=[0], partition__ranges=ranges)
    with pytest.raises(InvalidArgument, match=message):
        made(Catalog(), request)


def test_ranges_with_gaps_are_accepted_and_stand_in_order():
    ranges = [piece(None, key(0)), piece(key(5), key(9)), piece(key(9), None)]
    catalog = Catalog()
    plan = made(catalog, broken(partition__range_column_ids=[0], partition__ranges=ranges))
    assert plan.answer is not None
    assert [t.record.partition.range for t in catalog.tablets_of(plan.answer)] == ranges
