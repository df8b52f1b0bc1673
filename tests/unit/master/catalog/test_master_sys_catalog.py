"""The catalog's rows in a real tablet: one batch per operation, all or none, scanned whole."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import BadVersion, Corrupt, TooLarge
from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.env.env import Env
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse, parse_key
from nyala.master.catalog.records.rows import (
    CatalogRow,
    decision_row,
    key_row,
    marks_row,
    table_row,
)
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.ddl.create_table import PlanInputs, plan
from nyala.tablet.tablet import Tablet
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.master.support.master_helpers import create_request, server_info


class Outcome:
    def __init__(self, result: bytes) -> None:
        self.result = result


class OneCopy:
    """A group of one that applies at once to a real tablet."""

    def __init__(self, tablet: Tablet) -> None:
        self.tablet = tablet
        self.index = 0
        self.payloads: list[bytes] = []
        self.sessions: list[tuple[bytes, int, int]] = []

    async def write(self, payload, *, client_id, sequence, first_outstanding, timeout_ms):
        self.index += 1
        self.payloads.append(payload)
        self.sessions.append((client_id, sequence, first_outstanding))
        operation = CommittedOperation(OpId(1, self.index), self.index * 1000, payload)
        return Outcome(self.tablet.apply([operation])[0])

    async def read_point(self, at, timeout_ms):
        return self.index * 1000

    def status(self):
        return SimpleNamespace(applied_stamp=self.index * 1000)


def with_catalog(work, max_batch_bytes=1 << 20):
    """Run `work(sys_catalog, group)` over a tablet on a simulated disk."""

    async def main(loop: SimLoop):
        files = SimDisk(seeded(1, "disk"), loop.trace, "m").mount()
        env = Env(SimClock(loop), seeded(1), files, SimTasks(loop, seeded(2)), None)  # type: ignore[arg-type]
        group = OneCopy(Tablet.create(files, "/m/data", sys_catalog.tablet_info()))
        replica: Any = group
        rows = SysCatalog(
            env,
            replica,
            group.tablet,
            client_id=b"m" * 16,
            timeout_ms=1000,
            max_batch_bytes=max_batch_bytes,
        )
        return await work(rows, group)

    return run(main)


def big_table(tablets: int) -> tuple[Catalog, CatalogPlan, TableId]:
    catalog = Catalog()
    live = [server_info(f"{n:032x}") for n in range(5)]
    plan_inputs = PlanInputs(live, seeded(1), 1_600_000_000_000_000, 10_000, 3)
    made = plan(catalog, create_request("big", tablets), plan_inputs)
    assert made.answer is not None
    return catalog, made, made.answer


@pytest.mark.row("S0.2")
def test_replicated_catalog_rows_are_scanned_and_replaced_as_a_whole():
    async def work(rows, group):
        await rows.replicate([CatalogRow("table", "1", b"a"), CatalogRow("tablet", "1", b"b")])
        await rows.replicate(
            [CatalogRow("table", "1", b"c"), CatalogRow("cluster", "cluster", b"")]
        )
        return await rows.rows(), group.sessions

    found, sessions = with_catalog(work)
    assert found == [
        CatalogRow("cluster", "cluster", b""),
        CatalogRow("table", "1", b"c"),
        CatalogRow("tablet", "1", b"b"),
    ]
    assert sessions == [(b"m" * 16, 1, 1), (b"m" * 16, 2, 2)]


def decision(number: int, at: int = 7) -> cat.DecisionRecord:
    key = txn.TxnKey(name=f"job {number}")
    return cat.DecisionRecord(
        transaction=number.to_bytes(16, "big"), at=at, tablet_ids=["t"], key=key,
        attempt=txn.TxnAttempt(incarnation=1, term=2, number=3),
    )  # fmt: skip


def test_decisions_are_loaded_and_removed_and_keys_are_only_looked_up():
    async def work(rows, group):
        keys = [cat.KeyRecord(transaction=b"t" * 16, at=n, key=decision(n).key) for n in range(5)]
        plan = CatalogPlan(
            decisions=(decision(2, 9), decision(1)),
            keys=tuple(keys),
            marks=cat.DecisionMarks(removed=3),
        )
        catalog = Catalog()
        await rows.replicate(catalog.draft(plan).rows)
        catalog.load(await rows.rows())
        assert [r.at for r in catalog.decisions.rows.values()] == [7, 9]
        assert [r.at for r in catalog.decisions.of_key("job 2")] == [9]
        assert catalog.decisions.marks.removed == 3
        found = await rows.find("txn_key", "job 3")
        assert parse_key(found) == keys[3]
        assert await rows.find("txn_key", "job 9") is None
        assert [r.id for r in await rows.keys("job 1", 2)] == ["job 2", "job 3"]
        ended = CatalogPlan(removed=(decision(1).transaction,), removed_keys=("job 3", "job 9"))
        await rows.replicate(catalog.draft(ended).rows)
        catalog.publish(catalog.draft(ended))
        assert [r.kind for r in await rows.rows()] == ["decision", "decision_marks"]
        assert [r.id for r in await rows.keys("", 9)] == ["job 0", "job 1", "job 2", "job 4"]
        assert list(catalog.decisions.rows) == [decision(2).transaction]
        assert not catalog.decisions.of_key("job 1")
        changed = sys_catalog.changed(group.tablet.view(), 1000, 2000)
        assert changed == [], "a removed row is no row that changed"

    with_catalog(work)


def test_bytes_of_decisions_keys_and_marks_stay():
    golden = {
        decision_row(decision(1)): "0a10000000000000000000000000000000011007"
        "1a01742207"
        "0a056a6f6220312a06080110021803",
        key_row(
            cat.KeyRecord(key=decision(1).key, transaction=b"t" * 16, at=7)
        ): "0a070a056a6f6220311210747474747474747474747474747474741807",
        marks_row(
            cat.DecisionMarks(removed=1, settled=2, resolved=3, keys_removed=4)
        ): "0801100218032004",
    }
    assert {row: row.body.hex() for row in golden} == golden


@pytest.mark.row("S0.50", "S0.54")
def test_table_of_1000_tablets_is_one_batch_far_below_limit():
    async def work(rows, group):
        catalog, made, table_id = big_table(1000)
        draft = catalog.draft(made)
        await rows.replicate(draft.rows)
        assert len(group.payloads) == 1
        again = Catalog()
        again.load(await rows.rows())
        catalog.publish(draft)
        assert [t.id for t in again.tablets_of(table_id)] == [
            t.id for t in catalog.tablets_of(table_id)
        ]
        return len(draft.rows), len(group.payloads[0])

    rows, size = with_catalog(work)
    assert rows == 1001
    assert size <= 150_000, f"{size} bytes; Kudu's has 117 KB, and the limit of a message is 16 MiB"


@pytest.mark.row("S0.55")
def test_catalog_batch_over_limit_is_refused_before_proposal():
    async def work(rows, group):
        with pytest.raises(TooLarge, match="over the limit of 1000"):
            await rows.replicate([CatalogRow("table", "1", b"x" * 1000)])
        await rows.replicate([CatalogRow("table", "2", b"x")])
        return [r.id for r in await rows.rows()], len(group.payloads)

    assert with_catalog(work, 1000) == (["2"], 1)


def test_unknown_row_types_are_skipped_and_damaged_rows_refused():
    assert parse(CatalogRow("user", "u", b"?")) is None
    with pytest.raises(Corrupt, match="cannot be read"):
        parse(CatalogRow("table", "1", b"\xff\xff"))
    with pytest.raises(Corrupt, match="holds the record of '2'"):
        parse(CatalogRow("table", "1", cat.TableRecord(id="2").SerializeToString()))
    newer = table_row(cat.TableRecord(id="1", spec=pb.TableSpec(name="t")))
    raw = newer.body + b"\x10\x63"  # state = 99
    with pytest.raises(BadVersion, match="unknown state"):
        parse(CatalogRow("table", "1", raw))


def test_deleted_tablets_are_reloaded_but_not_listed_in_their_table():
    catalog, made, table_id = big_table(2)
    draft = catalog.draft(made)
    catalog.publish(draft)
    records = [t.edit() for t in catalog.tablets_of(table_id)]
    records[0].state = cat.TABLET_DELETED
    again = Catalog()
    later = Catalog().draft(CatalogPlan(tuple(records), made.tables))
    again.load(later.rows)
    assert [t.id for t in again.tablets_of(table_id)] == [records[1].id]
    assert again.tablet(TabletId(records[0].id)) is not None
