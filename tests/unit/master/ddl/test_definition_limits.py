"""Definitions at the documented limits: each operation on them, in the catalog's tablet and in a table's."""

import random
import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import Corrupt, InvalidArgument, TooLarge
from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.common.options import MIB, Options
from nyala.common.partitioning.partition import KeyRange, PartitionSchema, TabletPartition
from nyala.common.schema import (
    MAX_COLUMNS,
    MAX_COMMENT_BYTES,
    MAX_DEFAULT_BYTES,
    MAX_NAME_BYTES,
    from_arrow,
)
from nyala.master.catalog import parts, sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.ddl import alter_table, create_table, drop_table, recall_table
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.ddl.table_spec import MAX_TEXT_BYTES
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import SchemaOp
from nyala.tablet.tablet import Tablet
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.selected import first
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import SimLoop, run, seeded
from tests.unit.master.support.ddl_operations import ranged, steps_of
from tests.unit.master.support.master_helpers import report, server_info

OPTIONS = Options()
LIMIT = OPTIONS.catalog_batch_bytes // 2
IDS = random.Random(3)
SHAPES = {
    "999 columns of 20 bytes": (999, 20, 0),
    "700 columns of 30 bytes": (700, 30, 0),
    "500 columns of 50 bytes": (500, 50, 100),
    "all": (MAX_COLUMNS, MAX_NAME_BYTES, MAX_DEFAULT_BYTES, MAX_COMMENT_BYTES),
}


def text(rng: random.Random, size: int) -> str:
    """Random letters, which do not compress well."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=size))


def definition(
    rng: random.Random, columns: int, name: int, default: int, comment: int = 0
) -> pb.TableSpec:
    """Return a definition with a key column `k` and text columns: their number, and bytes of their texts."""
    names = [f"c{n:04d}{text(rng, name)}"[:name] for n in range(columns - 1)]
    arrow = pa.schema([("k", pa.int64()), *((n, pa.string()) for n in names)])
    defaults = {n: text(rng, default) for n in names} if default else None
    spec = pb.TableSpec(
        name=text(rng, MAX_NAME_BYTES),
        schema=convert.schema_to_proto(from_arrow(arrow, ["k"], defaults=defaults)),
        replicas=3,
        comment=text(rng, MAX_TEXT_BYTES),
        owner=text(rng, MAX_TEXT_BYTES),
    )
    spec.partition.CopyFrom(convert.partition_schema_to_proto(ranged((0, 10), (10, 20))))
    for column in spec.schema.columns:
        column.comment = text(rng, comment)
    return spec


class Master:
    """A leader master, whose rows go through the catalog's own tablet, and a follower of it.

    Attributes:
        catalog: of the leader.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.files = SimDisk(seeded(1, "disk"), loop.trace, "m").mount()
        self._tablet = Tablet.create(self.files, "/m/catalog", sys_catalog.tablet_info())
        self._index = 0
        self.catalog = Catalog()
        self._publish(
            CatalogPlan(cluster=cat.ClusterRecord(cluster_id="c", catalog_incarnation="i"))
        )

    @property
    def table(self) -> CatalogTable:
        """The only table."""
        (table_id,) = {t.table_id for t in self.catalog.tablets()}
        table = self.catalog.table(table_id)
        assert table is not None
        return table

    def do(self, operation: CatalogOperation) -> None:
        """Carry an operation out, and compare what a new leader and a follower read."""
        plan = operation.plan(self.catalog)
        assert plan.writes
        self._publish(plan)

    def alter(self, *steps: tuple[Any, ...]) -> None:
        """Alter the table; finished on return."""
        table = self.table
        request = pb.AlterTableRequest(id=table.id, steps=steps_of(table.spec, *steps))
        self.do(alter_table.operation(request, inputs()))
        self.report()
        for tablet in self.catalog.tablets_of(table.id):
            if tablet.dropped and not tablet.record.dropped_at:
                record = tablet.edit()
                record.dropped_at = 9
                self._publish(CatalogPlan((record,)))
        while held := [t for t in self.catalog.tablets_of(table.id) if t.held]:
            self.do(alter_table.open_ranges(self.table, lambda _: self.table.version, lambda: 7))
            self.report()
            assert len([t for t in self.catalog.tablets_of(table.id) if t.held]) < len(held)
        if self.catalog.altering():
            self.do(alter_table.finish(self.table, lambda _: self.table.version))

    def report(self) -> None:
        """Let every tablet be led."""
        records = []
        for tablet in self.catalog.tablets():
            if tablet.awaited:
                record = tablet.edit()
                record.state = cat.TABLET_RUNNING
                record.reported_by[:] = tablet.members
                record.consensus.CopyFrom(report(tablet.id, tablet.members, "a", 1).consensus)
                records.append(record)
        if records:
            self._publish(CatalogPlan(tuple(records)))

    def _publish(self, plan: CatalogPlan) -> None:
        draft = self.catalog.draft(plan)
        payload = sys_catalog.encode(draft.rows)
        assert len(payload) <= OPTIONS.catalog_batch_bytes
        self._index += 1
        operation = CommittedOperation(OpId(1, self._index), self._index * 1000, payload)
        _, errors = replicated_ops.decode_result(self._tablet.apply([operation])[0])
        assert not errors
        self.catalog.publish(draft)
        now = self._index * 1000
        changed = sys_catalog.changed(self._tablet.view(), now - 1000, now)
        assert sorted(changed, key=key) == sorted(draft.rows, key=key)
        again = Catalog()
        again.load(sys_catalog.scan(self._tablet.view(), now))
        for table in {t.table_id: None for t in self.catalog.tablets()}:
            assert again.table(table) == self.catalog.table(table)


def key(row: CatalogRow) -> tuple[str, str]:
    return row.kind, row.id


def inputs(limit: int = LIMIT) -> PlanInputs:
    live = [server_info(name) for name in "abcde"]
    return PlanInputs(live, IDS, 5, 100, 3, max_definition_bytes=limit)


def created(master: Master, spec: pb.TableSpec) -> None:
    master.do(create_table.operation(pb.CreateTableRequest(table=spec), inputs()))


def every_step(rng: random.Random, spec: pb.TableSpec) -> list[Sequence[tuple[Any, ...]]]:
    """Return an alteration of each kind, with the largest texts."""
    names = [c.name for c in spec.schema.columns]
    new = text(rng, MAX_NAME_BYTES)
    default = text(rng, MAX_DEFAULT_BYTES)
    return [
        [("add_range", 20, 30)],
        [("drop_range", 10, 20)],
        [("drop_range", 0, 10), ("add_range", 0, 10)],
        [("drop_column", names[-1])],
        [("add_column", new, pa.string()), ("set_default", new, default)],
        [
            ("rename_column", n, f"r{text(rng, MAX_NAME_BYTES)}"[:MAX_NAME_BYTES])
            for n in names[1:20]
        ],
        [("rename_column", "k", text(rng, MAX_NAME_BYTES))],
        [("rename", text(rng, MAX_NAME_BYTES))],
        [("set_comment", text(rng, MAX_TEXT_BYTES)), ("set_owner", text(rng, MAX_TEXT_BYTES))],
        [("set_options", {"history_max_age_s": "60"})],
        [("set_replicas", 5)],
    ]


@pytest.mark.parametrize("shape", first(SHAPES))
def test_definition_at_the_limits_takes_every_operation(shape):
    async def work(loop: SimLoop) -> None:
        rng = random.Random(shape)
        master = Master(loop)
        spec = definition(rng, *SHAPES[shape])
        created(master, spec)
        # before any replica is reported: its first definition is kept too
        request = pb.AlterTableRequest(
            id=master.table.id, steps=steps_of(spec, ("add_range", 90, 99))
        )
        master.do(alter_table.operation(request, inputs()))
        master.alter(("drop_range", 90, 99))
        for steps in every_step(rng, spec):
            master.alter(*steps)
        names = [c.name for c in master.table.spec.schema.columns]
        master.alter(*(("set_comment", text(rng, MAX_COMMENT_BYTES), n) for n in names[:20]))
        master.alter(*(("set_default", n, text(rng, MAX_DEFAULT_BYTES)) for n in names[1:20]))
        if len(names) == MAX_COLUMNS:
            with pytest.raises(InvalidArgument, match="at most 1000"):
                master.alter(("add_column", "z", pa.int64()))
        master.do(
            drop_table.operation(pb.DropTableRequest(id=master.table.id, reserve_seconds=60), 0)
        )
        master.do(recall_table.operation(pb.RecallTableRequest(id=master.table.id)))
        master.alter(*(("drop_column", n) for n in names[2:30]))
        master.alter(("rename", "small"))
        master.do(drop_table.operation(pb.DropTableRequest(id=master.table.id), 0))

    run(work)


def test_tablet_takes_definitions_at_the_limits_and_opens_with_them():
    async def work(loop: SimLoop) -> None:
        rng = random.Random(1)
        files = SimDisk(seeded(1, "disk"), loop.trace, "m").mount()
        schema = convert.schema_from_proto(definition(rng, *SHAPES["all"]).schema)
        whole = TabletPartition((), KeyRange(None, None))
        info = TabletInfo(TabletId("t"), TableId("t"), "t", schema, PartitionSchema(), whole)
        tablet = Tablet.create(files, "/m/t", info)
        assert Tablet.open(files, "/m/t").info.schema == schema
        after = replace(schema, version=1)
        payload = replicated_ops.encode_schema(SchemaOp(after, text(rng, MAX_NAME_BYTES), {}))
        assert len(payload) <= OPTIONS.write_max_bytes
        tablet.apply([CommittedOperation(OpId(1, 1), 1000, payload)])
        assert tablet.info.schema == after

    run(work)


def test_definition_that_could_not_be_altered_is_refused_at_its_creation():
    async def work(loop: SimLoop) -> None:
        master = Master(loop)
        spec = definition(random.Random(1), 10, 10, 0)
        small = inputs(1000)
        operation = create_table.operation(pb.CreateTableRequest(table=spec), small)
        with pytest.raises(
            TooLarge, match=r"would have 13[0-9]{4} bytes, and the masters keep at most 1000"
        ):
            operation.plan(master.catalog)
        created(master, spec)
        grown = pb.AlterTableRequest(
            id=master.table.id, steps=steps_of(spec, ("add_range", 20, 30))
        )
        with pytest.raises(TooLarge):
            alter_table.operation(grown, small).plan(master.catalog)
        smaller = pb.AlterTableRequest(
            id=master.table.id, steps=steps_of(spec, ("set_comment", ""))
        )
        assert alter_table.operation(smaller, small).plan(master.catalog).writes

    run(work)


def test_every_definition_at_the_limits_fits():
    rng = random.Random(1)
    spec = definition(rng, *SHAPES["all"])
    for column in spec.schema.columns:
        column.read_default_ipc = column.default_ipc
    assert 3 * MIB < spec.ByteSize() <= LIMIT


def test_row_without_one_of_its_parts_is_damaged():
    record = cat.TableRecord(id="t", spec=pb.TableSpec(comment="x" * 200_000))
    row = CatalogRow("table", "t", record.SerializeToString())
    rows = parts.split([row])
    assert [r.kind for r in rows] == ["table", *["table_part"] * 4]
    assert all(len(r.body) <= parts.PART_BYTES for r in rows)
    assert parts.join(rows) == [row]
    with pytest.raises(Corrupt, match="table/t has 4 parts, and part 1 is missing"):
        parts.join([rows[0], rows[1], *rows[3:]])


def test_release_that_knows_no_parts_refuses_the_row_instead_of_misreading_it():
    (head, *_) = parts.split([CatalogRow("table", "t", b"x" * 100_000)])
    with pytest.raises(Exception, match="unknown state"):
        parse(head)
