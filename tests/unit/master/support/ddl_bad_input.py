"""Steps of alterations and columns, for the tests of invalid definitions."""

import pyarrow as pa

from nyala.common.partitioning.partition import KeyRange
from nyala.master.ddl import create_table
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import array_to_ipc, value_to_ipc
from tests.unit.master.support import master_helpers
from tests.unit.master.support.ddl_operations import (
    bound,
    create_request,
    journal_request,
    plan_inputs,
    put,
    with_table,
)

Step = pb.AlterStep


def piece(lower, upper):
    return convert.range_to_proto(KeyRange(lower, upper))


def column(name="n", type="int32", **more):
    return Step(add_column=pb.Column(name=name, type=type, **{"nullable": True, **more}))


def renamed(name, new_name):
    return Step(rename_column=Step.Rename(name=name, new_name=new_name))


BAD = {
    "nothing": ([], "0 steps"),
    "an empty step": ([Step()], "an empty step"),
    "too many steps": ([Step(owner="x")] * 1001, "1001 steps"),
    "10,000 columns": ([column(f"c{n}") for n in range(999)], "1001 columns; a table has at most 1000"),
    "no name": ([column("")], "names are 1 to 256 bytes"),
    "a name of nyala's own": ([column("_op")], "do not begin with '_'"),
    "control characters": ([column("a\x1b[2J")], "unprintable"),
    "a long name": ([column("a" * 257)], "1 to 256 bytes"),
    "an unknown type": ([column(type="int65")], "unknown column type"),
    "a type that never ends": ([column(type="decimal(" + "9" * 100 + ",0)")], "unknown column type"),
    "a name twice": ([column(), column()], "a column 'n' already"),
    "not null without a default": ([column(nullable=False)], "needs a default"),
    "a default of another type": (
        [column(default_ipc=value_to_ipc(pa.scalar("x")))], "'n'"),
    "a damaged default": ([column(default_ipc=b"\xff" * 40)], "."),
    "two defaults": (
        [Step(set_default=Step.Value(name="v", ipc=array_to_ipc(pa.array(["a", "b"]))))], "one value"),
    "a default that does not fit": (
        [Step(set_default=Step.Value(name="v", ipc=array_to_ipc(pa.array(["a" * 2000]))))], "1024"),
    "a column that is not there": ([Step(drop_column="x")], "no column 'x'"),
    "the key dropped": ([Step(drop_column="k")], "part of the primary key"),
    "a default of the key": ([Step(set_default=Step.Value(name="k"))], "part of the primary key"),
    "nulls in the key": ([Step(allow_nulls="k")], "part of the primary key"),
    "onto another column": ([renamed("k", "v")], "a column 'v' already"),
    "a table without a name": ([Step(rename_table="")], "1 to 256 bytes of printable"),
    "a table name that unprintable": ([Step(rename_table="a\nb")], "printable text"),
    "the name of another table": ([Step(rename_table="other")], "'other' exists already"),
    "an unknown option": ([Step(option=Step.Text(name="colour", text="red"))], "no table option"),
    "an unknown option taken back": ([Step(option=Step.Text(name="colour"))], "no table option"),
    "an age that is no number": (
        [Step(option=Step.Text(name="history_max_age_s", text="-1"))], "whole number of seconds"),
    "an unknown compression": ([Step(option=Step.Text(name="compression", text="much"))], "compression"),
    "a comment without end": ([Step(table_comment="a" * 65_537)], "over 65536 bytes"),
    "an owner without end": ([Step(owner="a" * 65_537)], "over 65536 bytes"),
    "a column comment without end": (
        [Step(column_comment=Step.Text(name="v", text="a" * 1025))], "over 1024 bytes"),
    "an overlapping range": ([Step(add_range=piece(bound(5), bound(15)))], "overlaps 0 <= k < 10"),
    "a range of everything": ([Step(add_range=piece(None, None))], "overlaps"),
    "a range again": ([Step(add_range=piece(bound(0), bound(10)))], "overlaps"),
    "an empty range": ([Step(add_range=piece(bound(30), bound(30)))], "empty"),
    "an inverted range": ([Step(add_range=piece(bound(31), bound(30)))], "empty"),
    "a bound that is no key": ([Step(add_range=piece(b"\x01", None))], "no key of its columns"),
    "a range that is not there": ([Step(drop_range=piece(bound(0), bound(20)))], "dropped whole"),
    "every range": (
        [Step(drop_range=piece(bound(0), bound(10))), Step(drop_range=piece(bound(10), bound(20)))],
        "keeps one range"),
    "too many tablets": (
        [Step(add_range=piece(bound(20 + n), bound(21 + n))) for n in range(99)], "101 tablets"),
    "no replicas": ([Step(replicas=0)], "0 replicas; a table has an odd number"),
    "an even number of replicas": ([Step(replicas=2)], "2 replicas; a table has an odd number"),
    "more replicas than there may be": ([Step(replicas=9)], "from 1 to 7"),
    "replicas without end": ([Step(replicas=(1 << 32) - 1)], "from 1 to 7"),
    "more replicas than servers live": ([Step(replicas=5)], "need 5 live tablet servers, and 3 are live"),
    "good steps before a bad one": ([column("fine"), Step(owner="me"), Step(drop_column="x")], "'x'"),
}  # fmt: skip


def with_others():
    catalog = with_table()
    put(catalog, create_table.operation(create_request("other"), plan_inputs(4)))
    put(catalog, create_table.operation(master_helpers.create_request("plain"), plan_inputs(5)))
    put(catalog, create_table.operation(journal_request(), plan_inputs(6)))
    return catalog
