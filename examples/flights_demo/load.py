"""The load: the slices as they come, and what is killed and backed up between them."""

import time

from examples.flights_demo import kills, screen
from examples.flights_demo.backups import BackupChain
from examples.flights_demo.checks import Checks
from examples.flights_demo.loading import Loading, SliceChecker
from examples.flights_demo.probe import Probe
from examples.flights_demo.raw import Raw
from nyala.testing import MiniCluster

INTO_SLICE_S = 2.0
"""Time after the beginning of a slice at which the driver is killed."""


class Load:
    """Follows the pipeline to its end.

    A tablet server is killed after a quarter of the slices, the driver in the slice after three eighths, the
    leader master after five eighths; the full backup begins after half of them.

    Args:
        cluster: whose servers are killed.
        slices: number of slices.
        loading: the pipeline.
        probe: writes beside it.
        checks: where the outcomes go.
        backups: of the flights.

    Attributes:
        happened: kills of servers.
        operations: that were written.
        seconds: that the slices took.
        moments: for each slice, its hybrid time, and the time in µs up to which events were delivered.
    """

    def __init__(
        self,
        cluster: MiniCluster,
        slices: int,
        loading: Loading,
        probe: Probe,
        checks: Checks,
        backups: BackupChain,
    ) -> None:
        self._cluster = cluster
        self._slices = slices
        self._loading = loading
        self._probe = probe
        self._checks = checks
        self._backups = backups
        self._down: list[kills.Kill] = []
        self._driver_killed_in = 0
        self.happened: list[kills.Kill] = []
        self.operations = 0
        self.seconds = 0.0
        self.moments: dict[int, tuple[int, int]] = {}

    def run(self, raw: Raw) -> None:
        """Return when all slices are loaded and compared.

        Args:
            raw: what must be there.
        """
        checker = SliceChecker(self._cluster.masters, raw, self._checks)
        checker.start()
        heard: set[int] = set()
        with screen.progress() as bars:
            bar = bars.add_task("slices of the year", total=self._slices, note="starting Spark")
            while (mark := self._loading.marks.get()) is not None:
                number = int(str(mark["number"]))
                if number in heard:  # done, and not noted yet, when the driver was killed
                    continue
                heard.add(number)
                if number == 0:
                    bars.update(bar, note="weather, planes, airports, airlines are loaded")
                    continue
                self.operations += int(str(mark["operations"]))
                self.seconds += float(str(mark["seconds"]))
                checker.add(mark)
                self._restart_killed(number, float(str(mark["heard"])))
                note = f"{self.operations:,} operations"
                bars.update(bar, completed=number, note=note)
                said = self._between(number)
                bars.update(bar, note=note + said)
        for kill in self._down:
            self._cluster.start(kill.name, wait=False)
        checker.add(None)
        checker.join()
        self.moments = checker.moments
        status = self._loading.process.wait(timeout=60)
        said = " ".join(self._loading.log[-3:])
        self._checks.add(status == 0, "the pipeline ended well", said)
        if self._driver_killed_in:
            what = (
                f"the driver was killed in slice {self._driver_killed_in}, and another one went on"
            )
            self._checks.add(status == 0 and len(heard) == self._slices + 1, what, said)
        self._checks.add(
            checker.checked == self._slices,
            f"all {self._slices} slices were compared while later ones were written",
        )
        self._cluster.wait_healthy()

    def _between(self, number: int) -> str:
        """Kill and back up what is due after a slice; return what happened, in words."""
        slices = self._slices
        if number == max(2, slices // 2):
            self._backups.take_full()
        if number == max(3, 3 * slices // 8):
            time.sleep(INTO_SLICE_S)
            self._loading.kill_driver()
            self._checks.add(
                True, f"the driver was killed in slice {number + 1}, and another one went on"
            )
            return "; driver killed and started again"
        strike = {
            max(1, slices // 4): kills.kill_tserver,
            max(2, 5 * slices // 8): kills.kill_master,
        }
        if number not in strike:
            return ""
        self._cluster.wait_healthy()  # one failure at a time is what three replicas promise
        kill = strike[number](self._cluster, self._probe, self._checks)
        self.happened.append(kill)
        self._down.append(kill)
        return f"; {kill.name} killed, {kill.gap_s:.1f} s without a write"

    def _restart_killed(self, number: int, heard: float) -> None:
        """Start the servers again that were down while a slice was finished."""
        for kill in [k for k in self._down if k.moment < heard]:
            self._checks.add(
                not self._cluster.running(kill.name),
                f"the pipeline finished slice {number} while {kill.name} was down",
            )
            self._cluster.start(kill.name, wait=False)
            self._down.remove(kill)
