"""Open scans of a server: listed with user, age and rows until they end; limited in number."""

from contextlib import ExitStack

import pytest

from nyala.common.errors import Throttled
from nyala.env.clock import SystemClock
from nyala.tserver.scans.open_scans import OpenScans

pytestmark = pytest.mark.row("A18")


class Moments(SystemClock):
    """A clock that a test sets."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us


def test_open_scans_are_listed_until_they_end_the_oldest_first():
    clock = Moments()
    scans = OpenScans(clock, 3)
    with scans.hold("a", "rows") as first:
        clock.now_us = 1_500_000
        with scans.hold("b", "count"):
            first.at, first.rows = 77, 30
            assert scans.page().rows == [
                ("a", "rows", "-", "1.5", "77", "30"), ("b", "count", "-", "0.0", "0", "0"),
            ]  # fmt: skip
        assert [row[0] for row in scans.page().rows] == ["a"]
    assert scans.page().rows == []


def test_scan_over_the_limit_is_refused_and_a_failed_one_frees_its_place():
    scans = OpenScans(SystemClock(), 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(scans.hold("a", "rows"))
        with (
            pytest.raises(Throttled, match="2 scans are open on this server"),
            scans.hold("a", "rows"),
        ):
            raise AssertionError
    with pytest.raises(ValueError, match="failed"), scans.hold("a", "rows"):
        raise ValueError("failed")
    assert scans.page().rows == []
