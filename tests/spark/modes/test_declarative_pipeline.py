"""A declarative pipeline reads a table, and writes one, in each run what is new."""

import shutil

import pyarrow as pa
import pytest

from tests.spark.modes.conftest import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
SCHEMA = pa.schema([("sensor", pa.string()), ("at", pa.int64()), ("value", pa.float64())])


@pytest.fixture
def readings(client):
    source, alarms = (
        client.create_table(name, SCHEMA, ["sensor", "at"], replicas=1)
        for name in ("readings", "alarms")
    )
    source.insert([{"sensor": f"s{n % 3}", "at": n, "value": n * 2.0} for n in range(90)])
    yield source, alarms
    for name in ("readings", "alarms"):
        client.drop_table(name)


def test_pipeline_with_a_source_and_a_sink_applies_each_change_once(
    client, readings, run, tmp_path
):
    source, alarms = readings
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "spark_pipeline", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/nyala-readings-pipeline", f"{tmp_path}/storage"))
    catalog = "spark.sql.catalogImplementation=hive"
    command = ["spark-pipelines", "run", "--conf", catalog, "--spec", str(spec)]
    began = client.now()
    run(*command)
    assert sorted(alarms.scan(["at"]).to_arrow()["at"].to_pylist()) == list(range(51, 90))
    source.upsert([{"sensor": "s0", "at": 0, "value": 101.0}])
    run(*command)
    assert alarms.count() == 40
    assert alarms.changes(began, net=False).to_arrow()["_op"].to_pylist() == ["insert"] * 40
