"""The columns of a table at earlier times, from what alterations changed of them."""

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from nyala.common.alteration import (
    AddColumn,
    AllowNulls,
    DropColumn,
    RenameColumn,
    SetComment,
    SetDefault,
    Step,
    alter,
)
from nyala.common.errors import HistoryGone
from nyala.common.hybrid_time import from_micros
from nyala.common.schema import Schema, from_arrow
from nyala.master.catalog import past_columns
from nyala.master.catalog.actions import AlterTabletAction
from nyala.master.ddl import alter_table, drop_table, recall_table
from nyala.master.orders import reconcile
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_operations import alteration, plan_inputs, put, with_table

FIRST = from_arrow(
    pa.schema(
        [pa.field("k", pa.int64()), pa.field("a", pa.int64(), nullable=False), ("b", pa.string())]
    ),
    ["k"],
)
DAY = from_micros(86_400_000_000)


def record_of(schema: Schema) -> cat.TableRecord:
    return cat.TableRecord(spec=pb.TableSpec(name="t", schema=convert.schema_to_proto(schema)))


def note(record, schema, time, *, history_s=3600, max_bytes=0):
    before = pb.Schema()
    before.CopyFrom(record.spec.schema)
    record.spec.schema.CopyFrom(convert.schema_to_proto(schema))
    past_columns.note(record, before, time, history_s=history_s, max_bytes=max_bytes)


def shown(schema: Schema):
    return [(c.id, c.name, c.type, c.nullable, c.read_default) for c in schema.columns]


def at(record, time):
    message, until = past_columns.schema_at(record, time)
    return convert.schema_from_proto(message), until


def random_steps(rng, schema):
    steps, now = [], schema
    for _ in range(rng.randint(1, 3)):
        names = [c.name for c in now.value_columns]
        free = [n for n in "abcdefghijlmnopqrstuvwxyz" if n not in now.by_name]
        name = rng.choice(names) if names else ""
        kind = rng.choice(["add", "add", "drop", "rename", "nulls", "default", "comment"])
        if kind == "add" or not names:
            step: Step = AddColumn(free[0], pa.int64(), nullable=rng.random() < 0.5, default=3)
        else:
            changes: dict[str, Step] = {
                "drop": DropColumn(name),
                "rename": RenameColumn(rng.choice([name, "k"]), free[0]),
                "nulls": AllowNulls(name),
                "default": SetDefault(name, None),
                "comment": SetComment(name, "c"),
            }
            step = changes[kind]
        if isinstance(step, RenameColumn) and step.name not in now.by_name:
            continue
        now = alter(now, [step])
        steps.append(step)
    return steps or [SetComment(schema.columns[0].name, "again")]


@pytest.mark.parametrize("seed", range(30))
def test_schema_of_each_time_is_found_from_that_of_now(seed):
    rng, schema, time = Random(seed), FIRST, 100
    record, known = record_of(FIRST), [(0, FIRST)]
    for _ in range(20):
        schema = alter(schema, random_steps(rng, schema))
        time += rng.randint(1, 50)
        note(record, schema, time)
        known.append((time, schema))
    for number, (begin, then) in enumerate(known):
        end = known[number + 1][0] if number + 1 < len(known) else begin + 10
        for moment in (max(1, begin), end - 1):
            found, until = at(record, moment)
            assert shown(found) == shown(then)
            assert found.key_ids == then.key_ids
            assert found.version >= then.version
            assert not until or until >= end
    assert past_columns.last_time(record) == record.past[-1].until


def test_what_reads_do_not_see_is_not_noted():
    record = record_of(FIRST)
    note(record, alter(FIRST, [SetDefault("b", "x"), SetComment("a", "c")]), 50)
    note(record, alter(FIRST, [AddColumn("n", pa.int64()), DropColumn("n")]), 60)
    assert not record.past
    assert past_columns.last_time(record) == 0


def test_times_of_alterations_increase_whatever_the_clock():
    record = record_of(FIRST)
    one = alter(FIRST, [DropColumn("b")])
    note(record, one, 50)
    note(record, alter(one, [DropColumn("a")]), 40)
    assert [noted.until for noted in record.past] == [50, 51]
    record.past_from = 99
    del record.past[:]
    note(record, alter(one, [RenameColumn("a", "c")]), 40)
    assert [noted.until for noted in record.past] == [100]


def test_notes_are_bounded_by_number_and_age(monkeypatch):
    monkeypatch.setattr(past_columns, "MAX_PAST", 3)
    record, schema = record_of(FIRST), FIRST
    for number in range(5):
        schema = alter(schema, [AddColumn(f"n{number}", pa.int64())])
        note(record, schema, 100 + number)
    assert [noted.until for noted in record.past] == [102, 103, 104]
    assert at(record, 101)[0].columns[-1].name == "n1"
    with pytest.raises(HistoryGone, match="lies below 101, before which the columns") as gone:
        at(record, 100)
    assert gone.value.details["horizon"] == "101"
    note(record, alter(schema, [DropColumn("b")]), 200 + 8 * DAY, history_s=86_400)
    assert [noted.until for noted in record.past] == [200 + 8 * DAY]
    assert record.past_from == 104


def test_notes_are_bounded_by_size():
    record, long = record_of(FIRST), "x" * 200
    schema = alter(FIRST, [RenameColumn("b", long)])
    note(record, schema, 105)
    note(record, alter(schema, [RenameColumn(long, "b")]), 106, max_bytes=4 * 228)
    assert [noted.until for noted in record.past] == [106]


def test_alteration_too_large_to_note_ends_the_earlier_times():
    record = record_of(FIRST)
    schema = alter(FIRST, [SetComment("b", "c" * 1000)])
    note(record, schema, 50, max_bytes=4000)
    note(record, alter(schema, [DropColumn("b")]), 60, max_bytes=4000)
    assert (len(record.past), record.past_from, past_columns.last_time(record)) == (0, 60, 60)


def test_tablets_are_told_to_stamp_an_alteration_above_its_time():
    catalog = with_table()
    inputs = replace(plan_inputs(), time=lambda: 77, history_s=3600)
    put(catalog, alter_table.operation(alteration(catalog, "t", ("drop_column", "v")), inputs))
    table = catalog.require("t")
    (tablet, *_) = catalog.current_of(table.id)
    order = AlterTabletAction(tablet.members[0], tablet.id)
    request = reconcile.alter_request(catalog, order, pb.Fence())
    assert request is not None
    assert request.above == 77
    found, until = at(table.record, 76)
    assert ([c.name for c in found.columns][-1], until) == ("v", 77)


def test_recalled_table_has_its_earlier_columns():
    catalog = with_table()
    inputs = replace(plan_inputs(), time=lambda: 77)
    put(catalog, alter_table.operation(alteration(catalog, "t", ("drop_column", "v")), inputs))
    table = catalog.require("t")
    put(catalog, drop_table.operation(pb.DropTableRequest(name="t", reserve_seconds=60), 0))
    put(catalog, recall_table.operation(pb.RecallTableRequest(id=table.id, new_name="u")))
    assert at(catalog.require("u").record, 76)[0].column("v")


def test_notes_take_no_more_than_the_definitions_leave():
    record = record_of(FIRST)
    one = alter(FIRST, [RenameColumn("b", "c")])
    note(record, one, 50)
    size = record.ByteSize()
    note(record, alter(one, [SetComment("c", "d" * 100)]), 60, max_bytes=size + 140)
    assert [noted.until for noted in record.past] == [50]
    long = alter(one, [SetComment("c", "d" * 200)])
    note(record, replace(long, version=9), 70, max_bytes=size + 140)
    assert (len(record.past), record.past_from) == (0, 50)
