"""The page about members, command by command, on real processes."""

from pathlib import Path

import pyarrow as pa
import pytest

from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, run_page
from tests.waiting import wait_until

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "membership.md"
LATER = ("tserver-3", "tserver-4", "tserver-5")
ROWS = 300


@pytest.mark.timeout(600)  # some forty commands
def test_membership_page_commands_run(tmp_path):
    schema = pa.schema([pa.field("id", "int64", nullable=False), ("value", "float64")])
    options, folder = {"tserver_unresponsive_ms": "4000", "repair": "off"}, str(tmp_path / FOLDER)
    with MiniCluster(1, 6, folder, options, secure=True) as cluster, cluster.connect() as client:
        for name in LATER:
            cluster.stop(name)
        wait_until(lambda: sum(s.alive for s in client.servers()) == 4, "the masters miss them")
        table = client.create_table("metrics", schema, primary_key=["id"])
        table.upsert(pa.table({"id": range(ROWS), "value": [0.5] * ROWS}))
        for name in LATER:
            cluster.start(name, wait=False)
        cluster.wait_healthy()
        run_page(PAGE, cluster)
        assert table.count() == ROWS
