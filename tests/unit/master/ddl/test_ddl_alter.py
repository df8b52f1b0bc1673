"""Tables altered in a whole simulated cluster, and clients with the old schema."""

import pyarrow as pa
import pytest

from nyala.client.alter import AlterSteps
from nyala.common.errors import AlreadyPresent, NotFound, SchemaMismatch
from nyala.master.catalog.records.tables import TableState
from tests.unit.master.support.ddl_cluster import batch_of, with_cluster


@pytest.mark.row("S0.5", "S0.75", "S0.83")
def test_columns_are_altered_while_client_uses_older_schema():
    async def work(ddl):
        old = await ddl.create(tablets=3)
        await ddl.put(old, 1, 2, 3)
        new = await ddl.alter(
            old,
            ("add_column", "n", pa.int32()),
            ("rename_column", "v", "w"),
            ("rename_column", "k", "key"),
        )
        assert [c.name for c in new.schema.columns] == ["key", "w", "n"]
        assert ddl.leading().table(old.id).state is TableState.RUNNING
        assert not ddl.leading().table(old.id).record.HasField("fully_applied_schema")
        await ddl.put(old, 4)
        assert (
            await ddl.write(
                new, batch_of(key=pa.array([5]), w=pa.array([50]), n=pa.array([7], pa.int32()))
            )
            == []
        )
        assert await ddl.keys(old) == await ddl.keys(new) == [1, 2, 3, 4, 5]
        assert (await ddl.scan(new))[3:] == [
            {"key": 4, "w": 40, "n": None},
            {"key": 5, "w": 50, "n": 7},
        ]
        last = await ddl.alter(new, ("drop_column", "w"), ("set_default", "n", 9))
        with pytest.raises(SchemaMismatch, match="open the table again"):
            await ddl.put(old, 6)
        assert await ddl.write(last, batch_of(key=pa.array([6]))) == []
        assert (await ddl.scan(last))[4:] == [{"key": 5, "n": 7}, {"key": 6, "n": 9}]

    with_cluster(work)


@pytest.mark.row("A14")
def test_alteration_of_master_metadata_alters_no_tablet():
    async def work(ddl):
        old = await ddl.create()
        new = await ddl.alter(old, ("set_comment", "about"), ("set_owner", "me"))
        assert new.schema.version == 0
        record = ddl.leading().table(old.id).record
        assert (record.spec.comment, record.spec.owner) == ("about", "me")
        again = await ddl.alter(
            new, ("set_options", {"compression": "none", "history_max_age_s": 5})
        )
        assert again.schema.version == 1
        assert again.options == {"compression": "none", "history_max_age_s": "5"}
        assert (await ddl.alter(again, ("set_options", {"compression": None}))).options == {
            "history_max_age_s": "5"
        }

    with_cluster(work)


@pytest.mark.row("S0.76", "A14")
def test_renamed_table_keeps_its_rows_and_frees_its_name():
    async def work(ddl):
        old = await ddl.create()
        await ddl.put(old, 1)
        assert (await ddl.alter(old, ("rename", "t"))).schema.version == 0, (
            "a rename to the same name has no effect"
        )
        new = await ddl.alter(old, ("rename", "u"))
        assert (new.id, new.name, await ddl.keys(await ddl.open("u"))) == (old.id, "u", [1])
        with pytest.raises(NotFound):
            await ddl.open("t")
        other = await ddl.create("t")
        with pytest.raises(AlreadyPresent, match=f"id {other.id}"):
            await ddl.alter(new, ("rename", "t"))
        await ddl.put(old, 2)
        assert await ddl.keys(new) == [1, 2], "a client with the old schema continues"

    with_cluster(work)


@pytest.mark.row("S0.33", "S0.38")
def test_next_leader_completes_alteration_whose_orders_were_not_sent():
    """KUDU-1353, 1374: orders reach no tablet server, the table is altered, the leader crashes."""

    async def work(ddl):
        cluster = ddl.cluster
        old = await ddl.create(tablets=2)
        await ddl.put(old, *range(8))
        leader = cluster.leader_master()
        cluster.network.cut([leader.name], [s.name for s in cluster.tservers])
        asked = cluster.clients[0].run(_alter, ddl, old)
        await cluster.until(
            lambda: (c := ddl.leading()) is not None and c.altering(), "the alteration is durable"
        )
        assert ddl.leading().table(old.id).record.fully_applied_schema.version == 0
        leader.kill()
        cluster.network.heal()
        leader.start()
        new = await asked
        assert await ddl.keys(new) == list(range(8))
        assert [r["n"] for r in await ddl.scan(new)] == [7] * 8
        assert ddl.leading().table(old.id).state is TableState.RUNNING

    async def _alter(ddl, old):
        steps = AlterSteps(old)
        steps.add_column("n", pa.int32(), default=7)
        return await ddl.core.ddl.alter_table(old, steps.steps)

    with_cluster(work)
