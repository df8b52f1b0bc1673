"""Bound on the log lines of a port, which strangers cause: some in a minute, then their number."""

import logging

WINDOW_S = 60.0
LINES = 100
"""Lines of one logger in a window, but for errors of the process."""


class BoundedLines(logging.Filter):
    """Filter of a logger: lines above the bound are dropped; the first of a later window has their number.

    Args:
        most: lines in a window.
    """

    def __init__(self, most: int = LINES) -> None:
        super().__init__()
        self._most = most
        self._since_s, self._count, self._dropped = 0.0, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.levelno >= logging.ERROR:
            return True
        if not 0 <= record.created - self._since_s < WINDOW_S:
            if self._dropped:
                record.msg = (
                    f"{record.msg} (and {self._dropped} lines before it, which were not logged)"
                )
            self._since_s, self._count, self._dropped = record.created, 0, 0
        self._count += 1
        if self._count > self._most:
            self._dropped += 1
        return self._count <= self._most
