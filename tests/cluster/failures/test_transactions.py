"""Transactions of real processes: kill -9 of leader master and tablet servers, and the command line."""

import json
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import NyalaError, OutcomeUnknown
from nyala.testing import MiniCluster
from tests.waiting import wait_until, within

ACCOUNTS = list(range(8))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def create(client: nyala.Client, name: str) -> nyala.Table:
    spread = nyala.Partition(hash=[nyala.Hash(["k"], 4)])
    return client.create_table(name, SCHEMA, ["k"], spread)


def rows(balances: dict[int, int]) -> list[dict[str, int]]:
    return [{"k": k, "v": v} for k, v in balances.items()]


class Transfers:
    """A thread that moves money between the accounts of two tables until it is stopped."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        self.committed = 0
        self.errors: list[BaseException] = []
        self.wrong: list[Any] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=t) for t in (self._transfer, self._audit)]

    def __enter__(self) -> "Transfers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(within(120))
            assert not thread.is_alive()
        assert not self.wrong, self.wrong
        assert not self.errors, self.errors

    def _transfer(self) -> None:
        try:
            with self.cluster.connect() as client:
                left, right = client.table("left"), client.table("right")
                balances = dict.fromkeys(ACCOUNTS, 100)
                number = 0
                while not self._stop.is_set():
                    number += 1
                    key, changed = number % len(ACCOUNTS), dict(balances)
                    changed[key] -= 1
                    try:
                        with client.transaction(key=f"transfer {number}") as txn:
                            left.upsert(rows({key: changed[key]}), txn=txn)
                            right.upsert(rows({key: 200 - changed[key]}), txn=txn)
                    except OutcomeUnknown:
                        with client.transaction(
                            key=f"transfer {number}"
                        ) as txn:  # once, whatever it was
                            left.upsert(rows({key: changed[key]}), txn=txn)
                            right.upsert(rows({key: 200 - changed[key]}), txn=txn)
                    except NyalaError:
                        continue  # it had no effect
                    balances = changed
                    self.committed += 1
        except BaseException as err:
            self.errors.append(err)

    def _audit(self) -> None:
        """Read both tables at one time: each account and its counterpart have 200 together."""
        try:
            with self.cluster.connect() as client:
                left, right = client.table("left"), client.table("right")
                while not self._stop.is_set():
                    try:
                        at = client.now()
                        found = {r["k"]: r["v"] for r in left.scan(at=at).to_arrow().to_pylist()}
                        other = {r["k"]: r["v"] for r in right.scan(at=at).to_arrow().to_pylist()}
                    except NyalaError:
                        continue
                    if any(found[k] + other[k] != 200 for k in ACCOUNTS):
                        self.wrong.append((at, found, other))
        except BaseException as err:
            self.errors.append(err)


@pytest.mark.full
@pytest.mark.timeout(590)
def test_kills_of_leader_master_and_tablet_servers_leave_all_or_nothing_of_each_transaction():
    with MiniCluster() as cluster:
        with cluster.connect() as client:
            for name in ("left", "right"):
                create(client, name).upsert(rows(dict.fromkeys(ACCOUNTS, 100)))
        with Transfers(cluster) as transfers:

            def more(count: int) -> None:
                goal = transfers.committed + count
                wait_until(
                    lambda: transfers.committed >= goal or transfers.errors, f"{count} transfers"
                )

            more(5)
            tservers = [n for n in cluster.names if n.startswith("tserver")]
            for number in range(3):
                leader = cluster.leader_master()
                cluster.kill(leader)
                more(3)
                cluster.start(leader)
                victim = tservers[number % len(tservers)]
                cluster.kill(victim)
                more(3)
                cluster.start(victim)
            more(3)
        with cluster.connect() as client:
            found = {r["k"]: r["v"] for r in client.table("left").scan().to_arrow().to_pylist()}
            other = {r["k"]: r["v"] for r in client.table("right").scan().to_arrow().to_pylist()}
            assert [found[k] + other[k] for k in ACCOUNTS] == [200] * len(ACCOUNTS)
            assert sum(found.values()) == 100 * len(ACCOUNTS) - transfers.committed


def nyala_txn(cluster: MiniCluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nyala", "txn", *words, "--masters", cluster.masters]
    return subprocess.run(command, capture_output=True, text=True, timeout=within(60), check=False)


@pytest.mark.full
def test_command_line_lists_shows_and_aborts_transactions():
    with MiniCluster() as cluster, cluster.connect() as client:
        table = create(client, "t")
        with client.transaction(key="done") as done:
            table.upsert(rows({1: 1, 2: 2}), txn=done)
        txn = client.transaction()
        table.upsert(rows(dict.fromkeys(ACCOUNTS, 7)), txn=txn)
        listed = json.loads(nyala_txn(cluster, "list", "--format", "json").stdout)
        states = {r["id"]: (r["state"], r["at"], r["key"]) for r in listed}
        assert states[done.id] == ("resolved", done.commit_time, "done")
        assert states[txn.id] == ("staged", None, None)
        assert next(r["batches"] for r in listed if r["id"] == txn.id) >= 2
        shown = json.loads(nyala_txn(cluster, "show", txn.id[:12], "--format", "json").stdout)
        assert {r["state"] for r in shown} == {"staged"}
        refused = nyala_txn(cluster, "abort", done.id)
        assert (refused.returncode, "is committed at" in refused.stderr) == (6, True)
        assert nyala_txn(cluster, "abort", "ffff").returncode == 5
        assert nyala_txn(cluster, "abort", txn.id).returncode == 0
        with pytest.raises(nyala.TransactionDenied):
            txn.commit()
        assert table.count() == 2


@pytest.mark.full
def test_abort_says_up_to_when_a_transaction_may_have_been_committed():
    """Once the masters have removed a decision, they cannot say that what is staged was never committed."""
    with (
        MiniCluster(options={"client_result_ttl_s": "10"}) as cluster,
        cluster.connect() as client,
    ):
        table = create(client, "t")
        with client.transaction() as done:
            table.upsert(rows({1: 1}), txn=done)
        wait_until(lambda: done.id not in nyala_txn(cluster, "list").stdout, "the removal")
        gone = nyala_txn(cluster, "abort", done.id)
        assert (gone.returncode, "client_result_ttl_s" in gone.stderr) == (5, True)
        txn = client.transaction()
        table.upsert(rows({2: 2}), txn=txn)
        ended = nyala_txn(cluster, "abort", txn.id)
        assert ended.returncode == 0, ended.stderr
        assert f"(hybrid time {done.commit_time})" in ended.stdout + ended.stderr
        assert "is aborted" not in ended.stdout + ended.stderr
        with pytest.raises(nyala.TransactionDenied):
            txn.commit()
        assert table.count() == 1
