"""`nyala diagnose bundle` of a real cluster with certificates, of which one server is down."""

import json
import zipfile

import pytest

from nyala.operate.diagnose.bundle import read
from nyala.testing import MiniCluster
from tests.unit.cli.support.verbs import nyala

pytestmark = [pytest.mark.full, pytest.mark.row("A13")]


def test_bundle_has_every_server_that_answers_and_names_the_others(tmp_path):
    path = str(tmp_path / "bundle.zip")
    with MiniCluster(1, 2, options={"flush_bytes": "7654321"}, secure=True) as cluster:
        cluster.kill("tserver-1")
        status, _, err = nyala("diagnose", "bundle", path, "--masters", cluster.masters)
        assert status == 0, err
        down, up = cluster.address("tserver-1"), cluster.address("tserver-0")
        master = cluster.address("master-0")
    assert f"not in the bundle: {down}: " in err
    found = read(path)
    assert {s.address for s in found.servers} == {master, up}
    assert all("flush_bytes=7654321" in s.options for s in found.servers)
    assert list(found.missing) == [down]
    assert any(f"tablet server {down} is unreachable" in p for p in found.problems)
    assert any(name.startswith("start-") for name in found.steps)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        logs = [json.loads(archive.read(n))["rows"] for n in names if n.endswith("/log.json")]
        metrics = [archive.read(n) for n in names if n.endswith("/metrics.txt")]
    assert len(logs) == len(metrics) == 2
    assert all(any("serves on" in row["line"] for row in rows) for rows in logs)
    assert all(b"nyala_" in text for text in metrics)
