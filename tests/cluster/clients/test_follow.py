"""Followed feeds on real processes: leaders are killed, a follower is killed and continued."""

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.__main__ import INTERRUPTED
from nyala.operate.run import connected
from nyala.operate.tablets import table_holds
from nyala.testing import MiniCluster
from tests.cluster.support import leading
from tests.waiting import wait_until, within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS = 20
FOLLOW = """
import json, sys
import nyala

masters, name, since = sys.argv[1:]
with nyala.connect(masters) as client:
    for batch in client.table(name).follow(int(since), hold=600):
        print(json.dumps([batch.through, batch.to_pylist()]), flush=True)
"""
Copy = dict[int, int]


def apply(copy: Copy, rows: list[dict[str, Any]]) -> None:
    """Apply changes to a copy, and check each of them."""
    for row in rows:
        assert (row["_op"] == "insert") == (row["k"] not in copy), (row, copy)
        if row["_op"] == "delete":
            del copy[row["k"]]
        else:
            copy[row["k"]] = row["v"]


def table_at(table: nyala.Table, at: int) -> Copy:
    return {row["k"]: row["v"] for row in table.scan(at=at).to_arrow().to_pylist()}


def write(table: nyala.Table, value: int) -> int:
    """Write a few rows and delete one; return the time of the last write."""
    rows = [{"k": (value + i * 7) % KEYS, "v": value} for i in range(3)]
    table.upsert(rows).raise_for_errors()
    return table.delete_ignore([{"k": (value * 3) % KEYS}]).timestamp


@pytest.mark.full
def test_copy_of_killed_follower_is_continued_while_leaders_are_killed(cluster: MiniCluster):
    with cluster.connect() as client:
        parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)])
        table = client.create_table("followed", SCHEMA, ["k"], partition=parts)
        copy, position, value = Copy(), client.now(), 0
        for _ in range(3):
            goal = write(table, value := value + 1)
            command = [sys.executable, "-c", FOLLOW, cluster.masters, "followed", str(position)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                name = next(iter(leading.leaders(cluster, "followed").values()))
                cluster.kill(name)
                try:
                    for _ in range(5):
                        goal = write(table, value := value + 1)
                finally:
                    cluster.start(name)
                for line in process.stdout:
                    through, rows = json.loads(line)
                    if through > position:
                        position = through
                        apply(copy, rows)
                        assert copy == table_at(table, position)
                    if position >= goal:
                        break
                process.kill()
            assert position >= goal, "the follower ended before"
        holds = connected(cluster.masters, lambda core: table_holds(core, "followed"))
        assert holds, "the history is held for the followers that were killed"
        assert all(h.hold.startswith("follow-") and h.tablets == 3 for h in holds)
        assert all(0 < h.left_s <= 600 for h in holds)
        client.drop_table("followed")


def test_feed_is_closed_by_another_thread_and_shows_columns(cluster: MiniCluster):
    with cluster.connect() as client:
        table = client.create_table("closed_feed", SCHEMA, ["k"])
        begin = client.now()
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        feed = table.follow(begin, before=True)
        (first,) = next(feed).to_pylist()
        assert (first["k"], first["_op"], first["_before"]) == (1, "insert", None)
        client.table("closed_feed").alter().add_column("n", pa.int64()).commit()
        assert next(feed).schema_changed
        assert "n" in feed.definition.by_name
        seen: list[nyala.ChangeBatch] = []
        reader = threading.Thread(target=lambda: seen.extend(feed))
        reader.start()
        table.upsert([{"k": 1, "v": 2}]).raise_for_errors()
        wait_until(lambda: seen, "the next batch")
        assert pa.record_batch(seen[0]).column("_before").to_pylist()[0]["v"] == 1
        feed.close()
        reader.join(60)
        assert not reader.is_alive()
        assert next(feed, None) is None
        client.drop_table("closed_feed")


@pytest.mark.full
def test_command_prints_changes_as_lines_and_says_where_to_continue(cluster: MiniCluster):
    with cluster.connect() as client:
        table = client.create_table("printed", SCHEMA, ["k"])
        begin = client.now()
        table.upsert([{"k": 1, "v": 5}]).raise_for_errors()
        table.upsert([{"k": 1, "v": 6}]).raise_for_errors()
        words = [sys.executable, "-m", "nyala.cli.main", "table", "follow", "printed"]
        words += ["--masters", cluster.masters, "--since", str(begin)]
        done = subprocess.run([*words, "--limit", "2"], capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(r["_op"], r["v"]) for r in lines] == [("insert", 5), ("update", 6)]
        assert "continue with --since" in done.stderr
        more = [*words, "--limit", "2", "--before"]
        done = subprocess.run(more, capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [r["_before"] and r["_before"]["v"] for r in lines] == [None, 5]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["v"] == 5
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=within(120))
        assert process.returncode == INTERRUPTED, errors
        assert "continue with --since" in errors
        listed = [*words[:4], "holds", "printed", "--masters", cluster.masters, "--format", "json"]
        text = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        assert json.loads(text) == [], "each run released its hold"
        client.drop_table("printed")
