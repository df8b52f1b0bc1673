"""`nyala ops show` on real servers: a stopped tablet server holds up an operation."""

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.testing import MiniCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.row("W10")]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def shown(cluster, *more):
    """Return the JSON of `nyala ops WORDS`; None: no leader answers now, or it is not under way."""
    words = ["ops", *more, "--format", "json", "--masters", cluster.masters]
    done = CliRunner().invoke(app, words)
    return json.loads(done.stdout) if done.exit_code == 0 else None


def test_operation_held_up_by_a_stopped_server_is_shown_by_the_next_leader_master():
    with MiniCluster(options={"tserver_unresponsive_ms": "2000"}) as cluster:
        with cluster.connect() as client:
            table = client.create_table("held", SCHEMA, ["k"]).id
            cluster.stop("tserver-0")
            operation = f"delete-{table}"
            client.drop_table("held")

        def waits():
            """Return what the operation waits for, once it is only the stopped server."""
            answer = shown(cluster, "show", operation)
            found = answer["waits_for"] if answer else []
            servers = [w["address"] for w in found]
            return found if servers == [cluster.address("tserver-0")] else None

        (wait,) = wait_until(waits, "the stopped server is not shown")
        assert wait["tablet"]
        assert [o["id"] for o in shown(cluster, "--limit", "10")] == [operation]
        leader = cluster.leader_master()
        cluster.kill(leader)
        try:
            wait_until(waits, "the next leader master does not show it")
            answer = shown(cluster, "show", operation)
            assert (answer["subject"], answer["committed"]) == ("held", True)
        finally:
            cluster.start(leader)
            cluster.start("tserver-0")
        wait_until(lambda: shown(cluster) == [], "it is not complete")
        done = CliRunner().invoke(app, ["ops", "show", operation, "--masters", cluster.masters])
        assert (done.exit_code, "is under way" in done.output) == (5, True)
