"""The pipeline as a process of its own, and the checks of every slice while later ones are written."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import nyala
from examples.flights_demo.checks import Checks, differences
from examples.flights_demo.raw import Raw
from nyala.common.errors import NyalaError
from nyala.spark.flights.dataset import KEYS


@dataclass
class Loading:
    """`nyala pipeline flights` under way.

    Attributes:
        marks: what it printed for each finished slice, and when that was heard.
        log: what it said on standard error.
    """

    process: "subprocess.Popen[str]"
    marks: "queue.Queue[dict[str, object] | None]" = field(default_factory=queue.Queue)
    log: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, masters: str, slices: int, data: Path | None) -> "Loading":
        """Start the pipeline; its marks arrive in `marks`, then None."""
        words = [
            sys.executable,
            "-m",
            "nyala.cli.main",
            "pipeline",
            "flights",
            "--masters",
            masters,
        ]
        words += ["--slices", str(slices), *(["--data", str(data)] if data else [])]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        loading = cls(process)
        threading.Thread(target=loading._read_marks, daemon=True).start()
        threading.Thread(target=loading._read_log, daemon=True).start()
        return loading

    def _read_marks(self) -> None:
        assert self.process.stdout is not None, "piped"
        for line in self.process.stdout:
            if line.startswith("{"):
                self.marks.put({**json.loads(line), "heard": time.monotonic()})
        self.marks.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None, "piped"
        for line in self.process.stderr:
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
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class SliceChecker(threading.Thread):
    """Compares the table at each mark's time with an independent fold, while the pipeline goes on.

    Args:
        masters: of the cluster.
        raw: what must be there.
        checks: where the outcome goes.
    """

    def __init__(self, masters: str, raw: Raw, checks: Checks) -> None:
        super().__init__(daemon=True, name="slice checker")
        self._masters = masters
        self._raw = raw
        self._checks = checks
        self._waiting: queue.Queue[dict[str, object] | None] = queue.Queue()
        self.checked = 0

    def add(self, mark: dict[str, object] | None) -> None:
        """Check a finished slice; None: there are no more."""
        self._waiting.put(mark)

    def run(self) -> None:
        """Check until told that there are no more."""
        with nyala.connect(self._masters, timeout_ms=120_000) as client:
            while (mark := self._waiting.get()) is not None:
                until_us = round(datetime.fromisoformat(str(mark["until"])).timestamp() * 1e6)
                what = f"the table as of slice {mark['number']} equals a fold of slices 1 to {mark['number']}"
                try:
                    seen = client.table("flights").scan(at=int(str(mark["now"]))).to_arrow()
                    wrong = differences(seen, self._raw.after(until_us), list(KEYS["flights"]))
                except NyalaError as err:
                    wrong = str(err)
                self._checks.add(not wrong, what, wrong)
                self.checked += 1
