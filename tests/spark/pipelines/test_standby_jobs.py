"""Jobs with stand-by drivers: a second driver finishes what the first one has left."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.spark.jobs import copy, import_files
from nyala.spark.jobs.commands import parse
from nyala.spark.pipelines.jobs import job_pipeline

pytestmark = pytest.mark.full


@pytest.fixture
def tables(client):
    yield client
    for name in client.tables():
        client.drop_table(name)


def arguments_of(cluster, name, *words):
    found = parse(name, words, "test", cluster.masters)
    assert found.pop("standby")
    return found


def ends_after(job: Callable[..., Any]) -> Callable[..., Any]:
    """Return a job whose driver ends after its work."""

    def work(spark, **given):
        result = job(spark, **given)
        if not given["dry_run"]:
            raise RuntimeError("planted")
        return result

    return work


def test_import_and_copy_by_two_drivers_take_effect_once(spark, cluster, tables, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("k,v\n1,a\n2,b\n")
    new = ("--create", "--key", "k", "--replicas", "1")
    jobs: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "import": (import_files, (str(path), "left", *new, "--standby")),
        "copy": (copy, ("left", "right", "--standby")),
    }
    began = tables.now()
    for name, (job, words) in jobs.items():
        given = arguments_of(cluster, name, *words)
        with pytest.raises(RuntimeError, match="planted"):
            job_pipeline(name, given, ends_after(job), asdict, print).run(spark)
        done = job_pipeline(name, given, job, asdict, print).run(spark, standby=True)
        assert done.own_steps == ["work"]
    changes = tables.table("left").changes(began, net=False).to_arrow()
    assert sorted(changes["_op"].to_pylist()) == ["insert", "insert"]
    found = [tables.table(n).scan(order=True).to_arrow() for n in ("left", "right")]
    assert found[0] == found[1]
    assert found[0]["v"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize("mode", ["--atomic", "--no-atomic"])
def test_bad_lines_of_two_drivers_are_in_their_folder_once(spark, cluster, tables, tmp_path, mode):
    path, bad = tmp_path / "rows.csv", tmp_path / "bad"
    path.write_text("k,v\n1,a\nx,b\n3,c\n4\n")
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
    tables.create_table("bad", columns, ["k"], replicas=1)
    words = [str(path), "bad", "--bad", str(bad)]
    given = arguments_of(cluster, "import", *words, mode, "--standby")
    with pytest.raises(RuntimeError, match="planted"):
        job_pipeline("import", given, ends_after(import_files), asdict, print).run(spark)
    done = job_pipeline("import", given, import_files, asdict, print).run(spark, standby=True)
    assert (done.own_steps, done.results["work"]["bad_lines"]) == (["work"], 2)
    lines = [json.loads(x) for p in bad.glob("*.jsonl") for x in p.read_text().splitlines()]
    assert [(line["number"], line["text"]) for line in lines] == [(3, "x,b"), (5, "4")]
    with pytest.raises(InvalidArgument, match="its files are not of this import"):
        job_pipeline("import", given, import_files, asdict, print).run(spark)
    assert tables.table("bad").scan(["k"], order=True).to_arrow()["k"].to_pylist() == [1, 3]
