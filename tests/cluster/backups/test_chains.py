"""Restored tables equal the table as of the moment: rows, columns, partitions, options."""

import random

import pytest

import nyala
from nyala.backup.manifest import FULL, INCREMENTAL
from nyala.common.errors import AlreadyPresent, HistoryGone, InvalidArgument
from tests.cluster.backups.chains import History, bits, filled


def check(backups, name, moments):
    """Restore each moment, and compare it with a scan at this time."""
    for number, at in enumerate(moments):
        copy = f"{name}_{number}"
        backups.restore(name, name=copy, at=at)
        then = backups.client.table(name).scan(at=at, order=True)
        table = backups.client.table(copy)
        assert table.schema.equals(then.schema), at
        assert bits(table.scan(order=True).to_arrow()).equals(bits(then.to_arrow())), at
        backups.client.drop_table(copy)


@pytest.mark.row("A22")
@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chain_restores_any_moment_of_a_random_history(backups, seed):
    history = History(backups.client, f"h{seed}", seed)
    draw = random.Random(seed)
    for _ in range(8):
        history.change()
    [first] = backups.take(history.name)
    begin = first.until
    for _ in range(4):
        for _ in range(draw.randrange(8)):
            history.change()
        [last] = backups.take(history.name)
        assert last.kind == INCREMENTAL
    inside = [m for m in history.moments if begin <= m <= last.until]
    check(backups, history.name, [begin, last.until, *draw.choices(inside, k=18)])


def test_full_and_incremental_backup_restore_moments_between_them(backups):
    table = filled(backups)
    [first] = backups.take("t")
    between = table.upsert([{"k": 1, "v": "one"}]).timestamp
    table.delete([{"k": 2}])
    [second] = backups.take("t")
    assert (first.kind, first.rows_at_end) == (FULL, 100)
    assert (second.kind, second.rows_at_end) == (INCREMENTAL, 99)
    check(backups, "t", [first.until, between, second.until])
    with pytest.raises(InvalidArgument, match="do not contain the moment"):
        backups.restore("t", name="u", at=first.until - 1)
    with pytest.raises(AlreadyPresent, match="never writes over a table"):
        backups.restore("t")
    assert backups.client.tables() == ["t"]


@pytest.mark.full
def test_immutable_columns_that_were_written_again_are_restored(backups):
    table = filled(backups, immutable=["v"])
    [first] = backups.take("t")
    table.delete([{"k": 5}])
    table.upsert([{"k": 5, "v": "again"}])
    table.write([{"k": 6, "v": "", "_op": "delete"}, {"k": 6, "v": "at once", "_op": "upsert"}])
    [second] = backups.take("t")
    check(backups, "t", [first.until, second.until])


@pytest.mark.full
def test_definition_is_restored(backups):
    ranges = nyala.Range(["k"], [(None, 5), (5, 200)])
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)], range=ranges)
    table = filled(
        backups, partition=parts, options={"history_max_age_s": 7_000}, comment="of the test",
        defaults={"v": "given"},
    )  # fmt: skip
    table.alter().set_comment("values", "v").set_owner("ada").commit()
    backups.take("t")
    backups.client.drop_table("t")
    backups.restore("t")
    described = backups.client.describe("t")
    column = backups.client.table("t").definition.column("v")
    assert described.options == {"history_max_age_s": "7000"}
    assert (described.comment, described.partition.count, described.replicas) == (
        "of the test",
        6,
        1,
    )
    assert (column.comment, column.default.as_py()) == ("values", "given")
    with pytest.raises(InvalidArgument, match=r"dropped and created again.*--full"):
        backups.take("t")
    backups.take("t", full=True)
    check(backups, "t", [backups.take("t")[0].until])


@pytest.mark.full
def test_tables_are_backed_up_as_of_one_moment(backups):
    one, two = filled(backups, "one"), filled(backups, "two")
    first, second = backups.take("one", "two")
    assert first.until == second.until
    with backups.client.transaction() as txn:
        one.upsert([{"k": 1, "v": "both"}], txn=txn)
        two.upsert([{"k": 1, "v": "both"}], txn=txn)
    backups.take("one", "two")
    for name in ("one", "two"):
        backups.restore(name, name=f"{name}_new")
        assert backups.client.table(f"{name}_new").get({"k": 1}) == {"k": 1, "v": "both"}


@pytest.mark.full
def test_lost_history_asks_for_a_full_backup(backups, monkeypatch):
    filled(backups)
    backups.take("t")

    def gone(self, at=None, ttl=0):
        raise HistoryGone("the history before 5 is gone")

    monkeypatch.setattr(nyala.Table, "hold", gone)
    with pytest.raises(HistoryGone, match="--full"):
        backups.take("t")
