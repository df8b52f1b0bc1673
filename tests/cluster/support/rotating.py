"""A cluster whose certificate authority is replaced: its load, its commands, and what its servers trust."""

import threading
from pathlib import Path

import pyarrow as pa

from nyala.security.authorities import bundle
from tests.cluster.support.commands import run
from tests.waiting import wait_until, within

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS = 100


class Load:
    """Upserts and reads of one table, until it is stopped; the first error ends it."""

    def __init__(self, cluster):
        self.rounds, self.error, self._stopped = 0, None, threading.Event()
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with self._cluster.connect() as client:
                table = client.create_table("t", SCHEMA, primary_key=["k"], replicas=3)
                while not self._stopped.is_set():
                    value = self.rounds + 1
                    table.upsert([{"k": k, "v": value} for k in range(KEYS)])
                    assert table.count() == KEYS
                    assert table.get({"k": value % KEYS})["v"] == value
                    with self._cluster.connect() as fresh:
                        assert fresh.table("t").count() == KEYS
                    self.rounds = value
        except BaseException as err:
            self.error = err

    def progress(self):
        """Wait until it has done some work since now."""
        wanted = self.rounds + 3
        wait_until(lambda: self.error or self.rounds >= wanted, "the load goes on")
        assert self.error is None, self.error

    def stop(self):
        self._stopped.set()
        self._thread.join(within(60))
        assert self.error is None, self.error


def done(cluster, *words, before="", env=()):
    """Return the output of a command, which is repeated while no master leads.

    Args:
        cluster: the cluster.
        words: of the command.
        before: error of the command if one that was not answered in time has had its effect.
        env: of the command.
    """
    found = []

    def good():
        found.append(run(cluster, *words, env=env))
        had_effect = before and before in found[-1].stderr and len(found) > 1
        return found[-1].returncode == 0 or had_effect

    try:
        wait_until(good, f"{' '.join(words)}")
    except AssertionError as err:
        raise AssertionError(f"{err}: {found[-1].stderr}") from None
    return found[-1].stdout + found[-1].stderr


def trusted(cluster, name):
    """Return the authorities that a server trusts, the one that issues first."""
    ca = Path(cluster.data_dir(name), "certs", "ca.crt").read_bytes()
    return [bundle.key_id(c) for c in bundle.parse(ca)]
