"""A chain of backups, taken with `nyala backup` while the load goes on, and restored at two moments."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

import nyala
from examples.flights_demo.checks import Checks, differences
from examples.flights_demo.raw import Raw
from nyala.spark.flights.dataset import KEYS

LIMIT_S = 300


class BackupChain:
    """Backups of the flights: a full one in the middle of the load, an incremental one after it.

    Args:
        masters: of the cluster.
        folder: of the backups.
        checks: where the outcome goes.
    """

    def __init__(self, masters: str, folder: Path, checks: Checks) -> None:
        self._masters = masters
        self._folder = folder
        self._checks = checks
        self._full: threading.Thread | None = None
        shutil.rmtree(folder, ignore_errors=True)

    def take_full(self) -> None:
        """Begin the full backup, beside the load."""
        self._full = threading.Thread(target=self._take, args=("full",), daemon=True)
        self._full.start()

    def finish(self) -> None:
        """Wait for the full backup, and take the incremental one."""
        if self._full is not None:
            self._full.join()
        self._take("incremental")

    def restore(self, raw: Raw, earlier: tuple[int, int]) -> None:
        """Restore the end of the chain and an earlier moment, and compare both with the raw files.

        Args:
            raw: what must be there.
            earlier: hybrid time of the moment, and the time in µs up to which events were delivered then.
        """
        moment, until_us = earlier
        self._compare("flights_restored", [], raw.final("flights"), "the last backup")
        self._compare(
            "flights_earlier", ["--at", str(moment)], raw.after(until_us), "an earlier moment"
        )

    def _take(self, kind: str) -> None:
        began = time.monotonic()
        failure = self._nyala("backup", "flights", str(self._folder))
        took_s = time.monotonic() - began
        self._checks.add(not failure, f"{kind} backup of the flights, in {took_s:.1f} s", failure)

    def _compare(self, name: str, words: list[str], expected: pa.Table, what: str) -> None:
        began = time.monotonic()
        wrong = self._nyala("restore", str(self._folder), "--as", name, *words)
        took_s = time.monotonic() - began
        if not wrong:
            with nyala.connect(self._masters, timeout_ms=120_000) as client:
                seen = client.table(name).scan().to_arrow()
            wrong = differences(seen, expected, list(KEYS["flights"]))
        self._checks.add(
            not wrong, f"{what}, restored in {took_s:.1f} s, equals the raw data", wrong
        )

    def _nyala(self, *words: str) -> str:
        """Run a command; return nothing, or what it says about its failure."""
        command = [sys.executable, "-m", "nyala", *words, "--masters", self._masters]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return "" if done.returncode == 0 else " ".join(done.stderr.split()[-60:]) or "it failed"
