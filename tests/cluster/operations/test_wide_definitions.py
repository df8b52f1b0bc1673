"""A table at the documented limits in real processes: altered, moved, dropped, recalled, restarted."""

import random
import string

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import nyala
from nyala.cli.main import app
from nyala.common.schema import MAX_COLUMNS, MAX_COMMENT_BYTES, MAX_DEFAULT_BYTES, MAX_NAME_BYTES
from nyala.testing import MiniCluster

pytestmark = pytest.mark.full

RNG = random.Random(1)
RANGES = nyala.Partition(range=nyala.Range(["k"], [(0, 100)]))


def text(size: int) -> str:
    return "".join(RNG.choices(string.ascii_letters, k=size))


def run_nyala(cluster, *words):
    done = CliRunner().invoke(app, [*words, "--masters", cluster.masters])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def test_widest_table_takes_every_operation_and_outlives_restarts():
    names = [f"c{n:04d}_{text(MAX_NAME_BYTES)}"[:MAX_NAME_BYTES] for n in range(MAX_COLUMNS - 1)]
    schema = pa.schema([("k", pa.int64()), *((n, pa.string()) for n in names)])
    defaults = {n: text(MAX_DEFAULT_BYTES) for n in names}
    with MiniCluster(masters=3, tservers=2) as cluster, cluster.connect() as client:
        table = client.create_table(
            "wide", schema, ["k"], RANGES, 1, defaults=defaults, comment=text(65_536)
        )
        table.upsert([{"k": 1}, {"k": 2, names[0]: "x"}]).raise_for_errors()
        table.alter().add_range(100, 200).commit()
        last, new = names[-1], text(MAX_NAME_BYTES)
        table.alter().drop_column(last).add_column(new, pa.string(), default=text(1024)).commit()
        alter = table.alter()
        for name in names[:20]:
            alter.set_comment(text(MAX_COMMENT_BYTES), name)
        alter.commit()
        table.alter().rename_column(names[1], "renamed").set_options(
            {"history_max_age_s": 60}
        ).commit()
        table.alter().drop_range(100, 200).commit()
        table.upsert([{"k": 3}]).raise_for_errors()
        assert new in run_nyala(cluster, "table", "describe", "wide", "--format", "json")

        ((tablet, owner),) = cluster.leaders("wide").items()
        (other,) = {"tserver-0", "tserver-1"} - {owner}
        words = ("tablet", "change_config", "move_replica", tablet)
        run_nyala(cluster, *words, cluster.address(owner), cluster.address(other))
        assert cluster.leaders("wide") == {tablet: other}

        client.drop_table("wide", reserve_seconds=600)
        (dropped,) = client.dropped_tables()
        client.recall_table(dropped, "wide_again")
        for name in cluster.names:
            cluster.kill(name)
        for name in cluster.names:
            cluster.start(name, wait=False)
        cluster.wait_healthy()
        with cluster.connect() as again:
            table = again.table("wide_again")
            rows = table.scan(["k", names[0], "renamed", new]).to_arrow().sort_by("k").to_pylist()
            assert [r["k"] for r in rows] == [1, 2, 3]
            assert [r[names[0]] for r in rows] == [defaults[names[0]], "x", defaults[names[0]]]
            assert {r["renamed"] for r in rows} == {defaults[names[1]]}
            assert len({r[new] for r in rows}) == 1
            table.alter().rename("wide").commit()
            assert again.sql("select count(*) as n from wide").to_pylist() == [{"n": 3}]
            again.drop_table("wide")
