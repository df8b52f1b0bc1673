"""Definitions that nobody should send: refused before anything is replicated, with what and why."""

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from nyala.common.errors import (
    AlreadyPresent,
    InvalidArgument,
    NotFound,
    Rejected,
    Throttled,
    Unavailable,
)
from nyala.common.keys import encode_key
from nyala.common.partition import KeyRange
from nyala.master.catalog.locks import Locks
from nyala.master.ddl import alter_table, create_table, drop_table, recall_table
from nyala.master.ddl.operation import LeaderMemory, run
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import array_to_ipc, value_to_ipc
from tests.sim.world.loop import run as simulate
from tests.unit.master import master_helpers
from tests.unit.master.ddl_operations import (
    around,
    bound,
    create_request,
    loaded,
    put,
    rows_of,
    steps_of,
    with_table,
)

Step = pb.AlterStep
INT = pa.int64()


def piece(lower, upper):
    return convert.range_to_proto(KeyRange(lower, upper))


def column(name="n", type="int32", **more):
    return Step(add_column=pb.Column(name=name, type=type, **{"nullable": True, **more}))


def renamed(name, new_name):
    return Step(rename_column=Step.Rename(name=name, new_name=new_name))


BAD = {
    "nothing": ([], "0 steps"),
    "an empty step": ([Step()], "says nothing"),
    "too many steps": ([Step(owner="x")] * 1001, "1001 steps"),
    "10,000 columns": ([column(f"c{n}") for n in range(999)], "1001 columns; a table has at most 1000"),
    "no name": ([column("")], "names are 1 to 256 bytes"),
    "a name of nyala's own": ([column("_op")], "do not begin with '_'"),
    "control characters": ([column("a\x1b[2J")], "does not print"),
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
    "a table name that does not print": ([Step(rename_table="a\nb")], "printable text"),
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
    put(catalog, create_table.operation(create_request("other"), around(4)))
    put(catalog, create_table.operation(master_helpers.create_request("plain"), around(5)))
    return catalog


class Nowhere:
    """Where nothing may be replicated or ordered."""

    async def replicate(self, rows):
        raise AssertionError(f"{len(rows)} rows replicated")

    def enqueue(self, actions):
        raise AssertionError(actions)


def refuse(catalog, operation, error, match):
    before, nowhere = rows_of(catalog), Nowhere()
    memory = LeaderMemory(1, catalog, nowhere, nowhere, Locks(), lambda: None)
    with pytest.raises(error, match=match) as told:
        run(operation, memory).send(None)
    assert rows_of(catalog) == before
    assert not memory.locks.held()
    assert len(told.value.message) < 2000
    return told.value


@pytest.mark.row("S1.3")
@pytest.mark.parametrize("what", BAD)
def test_an_alteration_is_refused_before_anything_is_replicated(what):
    steps, match = BAD[what]
    request = pb.AlterTableRequest(name="t", steps=steps)
    refuse(with_others(), alter_table.operation(request, around()), Rejected, match)


def test_more_replicas_wait_for_servers_that_still_open_theirs():
    request = pb.AlterTableRequest(name="t", steps=[Step(replicas=5)])
    starting = replace(around(), opening=2)
    wanted = alter_table.operation(request, starting)
    refuse(with_others(), wanted, Unavailable, "3 are ready, and 2 are starting")


def test_who_is_altered_has_to_be_said_once_and_be_there():
    catalog = with_others()
    table = catalog.require("t")
    fine = [Step(owner="me")]
    for request, error in (
        (pb.AlterTableRequest(steps=fine), InvalidArgument),
        (pb.AlterTableRequest(name="t", id=table.id, steps=fine), InvalidArgument),
        (pb.AlterTableRequest(name="nobody\x00", steps=fine), NotFound),
        (pb.AlterTableRequest(id="nobody", steps=fine), NotFound),
    ):
        refuse(catalog, alter_table.operation(request, around()), error, ".")
    plain = pb.AlterTableRequest(name="plain", steps=[Step(add_range=piece(bound(0), None))])
    refuse(
        catalog, alter_table.operation(plain, around()), InvalidArgument, "not partitioned by range"
    )


def test_drops_and_recalls_are_refused():
    catalog = with_others()
    table = catalog.require("t")
    drop = lambda **more: drop_table.operation(pb.DropTableRequest(**more), 7)  # noqa: E731
    refuse(catalog, drop(), InvalidArgument, "one of the two")
    refuse(catalog, drop(name="t", id=table.id), InvalidArgument, "one of the two")
    refuse(catalog, drop(name="x"), NotFound, "the tables are: other, plain, t")
    refuse(catalog, drop(id="x"), NotFound, "no table has the id")
    refuse(catalog, drop(name="t", reserve_seconds=1 << 60), InvalidArgument, "at most")
    recall = lambda **more: recall_table.operation(pb.RecallTableRequest(**more))  # noqa: E731
    refuse(catalog, recall(id=table.id), NotFound, "is there")
    refuse(catalog, recall(), NotFound, "no table has the id ''")
    put(catalog, drop(name="t", reserve_seconds=60))
    refuse(catalog, drop(id=table.id, reserve_seconds=60), InvalidArgument, "dropped already")
    refuse(catalog, recall(id=table.id, new_name="other"), AlreadyPresent, "'other' exists")
    refuse(catalog, recall(id=table.id, new_name="a\tb"), InvalidArgument, "printable")
    put(catalog, drop(id=table.id))
    refuse(catalog, recall(id=table.id), NotFound, "dropped for good")
    refuse(catalog, drop(id=table.id), NotFound, "dropped for good")


def test_bounds_of_another_type_are_no_keys():
    text = encode_key([pa.scalar("a")], [pa.string()])
    request = pb.AlterTableRequest(name="t", steps=[Step(drop_range=piece(text, None))])
    refuse(
        with_others(),
        alter_table.operation(request, around()),
        InvalidArgument,
        "no key of its columns",
    )


@pytest.mark.row("S0.66")
@pytest.mark.parametrize("fails", [False, True])
def test_a_rename_onto_a_name_that_is_being_created_waits_and_sees_what_became_of_it(fails):
    catalog = loaded(rows_of(with_table()))
    going = asyncio.Event()

    class Rows:
        async def replicate(self, rows):
            if not going.is_set():
                going.set()
                await asyncio.get_running_loop().delay(1000)  # type: ignore[attr-defined]
                if fails:
                    raise Throttled("full")

        def enqueue(self, actions):
            pass

    memory = LeaderMemory(1, catalog, Rows(), Rows(), Locks(), lambda: None)
    steps = steps_of(catalog.require("t").spec, ("rename", "u"))
    rename = alter_table.operation(pb.AlterTableRequest(name="t", steps=steps), around(3))

    async def main(loop):
        create = create_table.operation(create_request("u"), around(2))
        first = asyncio.ensure_future(run(create, memory))
        await going.wait()
        return await asyncio.gather(first, run(rename, memory), return_exceptions=True)

    created, outcome = simulate(main)
    assert isinstance(created, Throttled) is fails
    assert isinstance(outcome, AlreadyPresent) is not fails
    assert [t.name for t in catalog.tables()] == (["u"] if fails else ["t", "u"])
    assert not memory.locks.held()
