"""Shares of each user in the reads and writes of a tablet server."""

from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.security.limits.shares import Shares

FIXED = "a fixed limit"
WAITS_OF_USER, TAILS_OF_USER = 750, 768
"""Share of each user in the requests that wait for changes of tables, and of journals."""


class CallerShares:
    """Shares of users in a tablet server.

    Attributes:
        scans: open scans.
        writes: bytes of writes in flight.
        waits: requests that wait for changes of tables.
        tails: requests that wait for changes of journals.

    Args:
        options: the shares.
        metrics: counts refusals.
    """

    def __init__(self, options: Options, metrics: Metrics) -> None:
        refused = metrics.counter(
            "tserver_user_refusals", "Requests refused since a user has its share.", ["what"]
        )
        scans, writes = refused.labels("scans"), refused.labels("writes")
        waits = refused.labels("waits").inc
        self.scans = Shares("open scans", options.user_scans_max, "user_scans_max", scans.inc)
        self.writes = Shares(
            "bytes of writes in flight", options.user_write_bytes, "user_write_bytes", writes.inc
        )  # fmt: skip
        self.waits = Shares("waits for changes of tables", WAITS_OF_USER, FIXED, waits)
        self.tails = Shares("waits for changes of journals", TAILS_OF_USER, FIXED, waits)
