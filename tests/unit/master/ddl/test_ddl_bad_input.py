"""Invalid definitions: refused before anything is replicated, with problem and reason."""

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
from nyala.common.keys.encoding import encode_key
from nyala.master.catalog.locks import Locks
from nyala.master.ddl import alter_table, create_table, drop_table, recall_table
from nyala.master.ddl.operation import LeaderMemory, run
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run as simulate
from tests.unit.master.support.ddl_bad_input import BAD, Step, piece, with_others
from tests.unit.master.support.ddl_operations import (
    bound,
    create_request,
    loaded,
    plan_inputs,
    put,
    rows_of,
    steps_of,
    with_table,
)

INT = pa.int64()


class Nowhere:
    """A store and a queue that refuse everything."""

    async def replicate(self, rows):
        raise AssertionError(f"{len(rows)} rows replicated")

    def enqueue(self, actions):
        raise AssertionError(actions)


def refuse(catalog, operation, error, match):
    before, unavailable = rows_of(catalog), Nowhere()
    memory = LeaderMemory(1, catalog, unavailable, unavailable, Locks(), lambda: None)
    with pytest.raises(error, match=match) as raised:
        run(operation, memory).send(None)
    assert rows_of(catalog) == before
    assert not memory.locks.held()
    assert len(raised.value.message) < 2000
    return raised.value


@pytest.mark.row("S1.3")
@pytest.mark.parametrize("what", BAD)
def test_invalid_alteration_is_refused_before_replication(what):
    steps, match = BAD[what]
    request = pb.AlterTableRequest(name="t", steps=steps)
    refuse(with_others(), alter_table.operation(request, plan_inputs()), Rejected, match)


def test_create_table_with_more_replicas_waits_for_starting_servers():
    request = pb.AlterTableRequest(name="t", steps=[Step(replicas=5)])
    starting = replace(plan_inputs(), opening=2)
    wanted = alter_table.operation(request, starting)
    refuse(with_others(), wanted, Unavailable, "3 are ready, and 2 are starting")


def test_alter_request_requires_one_existing_table():
    catalog = with_others()
    table = catalog.require("t")
    valid = [Step(owner="me")]
    for request, error in (
        (pb.AlterTableRequest(steps=valid), InvalidArgument),
        (pb.AlterTableRequest(name="t", id=table.id, steps=valid), InvalidArgument),
        (pb.AlterTableRequest(name="nobody\x00", steps=valid), NotFound),
        (pb.AlterTableRequest(id="nobody", steps=valid), NotFound),
    ):
        refuse(catalog, alter_table.operation(request, plan_inputs()), error, ".")
    plain = pb.AlterTableRequest(name="plain", steps=[Step(add_range=piece(bound(0), None))])
    refuse(
        catalog,
        alter_table.operation(plain, plan_inputs()),
        InvalidArgument,
        "not partitioned by range",
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
    refuse(catalog, recall(id=table.id), NotFound, "deleted permanently")
    refuse(catalog, drop(id=table.id), NotFound, "deleted permanently")


def test_bounds_of_another_type_are_no_keys():
    text = encode_key([pa.scalar("a")], [pa.string()])
    request = pb.AlterTableRequest(name="t", steps=[Step(drop_range=piece(text, None))])
    refuse(
        with_others(),
        alter_table.operation(request, plan_inputs()),
        InvalidArgument,
        "no key of its columns",
    )


@pytest.mark.row("S0.66")
@pytest.mark.parametrize("fails", [False, True])
def test_rename_to_name_under_creation_waits_for_its_outcome(fails):
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
    rename = alter_table.operation(pb.AlterTableRequest(name="t", steps=steps), plan_inputs(3))

    async def main(loop):
        create = create_table.operation(create_request("u"), plan_inputs(2))
        first = asyncio.ensure_future(run(create, memory))
        await going.wait()
        return await asyncio.gather(first, run(rename, memory), return_exceptions=True)

    created, outcome = simulate(main)
    assert isinstance(created, Throttled) is fails
    assert isinstance(outcome, AlreadyPresent) is not fails
    assert [t.name for t in catalog.tables()] == (["u"] if fails else ["t", "u"])
    assert not memory.locks.held()
