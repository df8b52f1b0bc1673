"""The pipeline as a process of its own, and the checks of every slice while later ones are written."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import nyala
from examples.flights_demo.checks import Checks, differences
from examples.flights_demo.raw import Raw
from nyala.common.errors import NyalaError
from nyala.spark.flights.dataset import KEYS


class Loading:
    """`nyala pipeline flights --standby` under way.

    Args:
        masters: of the cluster.
        slices: steps in which the year is loaded.
        data: raw files; None: those that ship with nyala.
        work: folder of the queries' checkpoints.

    Attributes:
        marks: what the drivers printed for each finished slice, and when that was heard; None at the end.
        log: what they said on standard error.
        process: the driver that runs, or was the last one.
    """

    def __init__(self, masters: str, slices: int, data: Path | None, work: Path) -> None:
        self._words = [
            sys.executable, "-m", "nyala", "pipeline", "flights", "--standby", "--masters", masters,
            "--slices", str(slices), "--work", str(work), *(["--data", str(data)] if data else []),
        ]  # fmt: skip
        self.marks: queue.Queue[dict[str, object] | None] = queue.Queue()
        self.log: list[str] = []
        self._killed: set[int] = set()
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read_marks, args=(process,), daemon=True).start()
        threading.Thread(target=self._read_log, args=(process,), daemon=True).start()
        return process

    def kill_driver(self) -> None:
        """Kill the driver and its JVM with kill -9, and start another driver with the same command."""
        self._killed.add(self.process.pid)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = self._start()

    def _read_marks(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None, "piped"
        with process.stdout:
            for line in process.stdout:
                if line.startswith("{"):
                    self.marks.put({**json.loads(line), "heard": time.monotonic()})
        if process.pid not in self._killed:
            self.marks.put(None)

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None, "piped"
        with process.stderr:
            for line in process.stderr:
                self.log.append(line.rstrip())

    def stop(self) -> None:
        """End the process and all that it started."""
        for what in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                try:
                    os.killpg(self.process.pid, what)
                    self.process.wait(timeout=15)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


class SliceChecker(threading.Thread):
    """Compares the table at each mark's time with an independent fold, while the pipeline goes on.

    Args:
        masters: of the cluster.
        raw: what must be there.
        checks: where the outcome goes.

    Attributes:
        checked: number of slices that were compared.
        moments: for each of them, its hybrid time, and the time in µs up to which events were delivered.
    """

    def __init__(self, masters: str, raw: Raw, checks: Checks) -> None:
        super().__init__(daemon=True, name="slice checker")
        self._masters = masters
        self._raw = raw
        self._checks = checks
        self._waiting: queue.Queue[dict[str, object] | None] = queue.Queue()
        self.checked = 0
        self.moments: dict[int, tuple[int, int]] = {}

    def add(self, mark: dict[str, object] | None) -> None:
        """Check a finished slice; None: there are no more."""
        self._waiting.put(mark)

    def run(self) -> None:
        """Check until told that there are no more."""
        with nyala.connect(self._masters, timeout_ms=120_000) as client:
            while (mark := self._waiting.get()) is not None:
                until_us = round(datetime.fromisoformat(str(mark["until"])).timestamp() * 1e6)
                now = int(str(mark["now"]))
                self.moments[int(str(mark["number"]))] = now, until_us
                what = f"the table as of slice {mark['number']} equals a fold of slices 1 to {mark['number']}"
                try:
                    seen = client.table("flights").scan(at=now).to_arrow()
                    wrong = differences(seen, self._raw.after(until_us), list(KEYS["flights"]))
                except NyalaError as err:
                    wrong = str(err)
                self._checks.add(not wrong, what, wrong)
                self.checked += 1
