"""Last lines of the log of this process, in memory, and their page."""

import logging
import re
from collections import deque

from nyala.web.pages import Listing

FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
"""Format of the log of every process."""
KEPT = 1_000
"""Number of records that are kept."""
LONGEST = 4_000
"""Characters of a record that are kept."""
_KEY = r'-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*?(-----END [A-Z ]*PRIVATE KEY-----|(?=")|$)'
_SECRETS = (
    (re.compile(_KEY), "[private key]"),
    (re.compile(r'(?i)\b(password|secret|token)(\s*[=:]\s*)[^\s"\\]+'), r"\1\2[redacted]"),
    (re.compile(r'(\b\w{1,20}://[^\s:/@"]{1,1000}):[^\s@/"]{1,1000}@'), r"\1:[redacted]@"),
)
"""Patterns of secrets, and the replacement of each. None extends over a quotation mark: JSON remains JSON.

The time of each is linear in the length of the text, whatever is in it: a server logs what others sent.
"""


def redacted(text: str) -> str:
    """Return a text without private keys, and without values after `password`, `secret` and `token`."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class LastLines(logging.Handler):
    """Keeps the last records of a process, formatted and redacted."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: deque[str] = deque(maxlen=KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record. Any thread."""
        try:
            text = self.format(record)[: 2 * LONGEST]  # a secret that is cut off at its end is none
            text = redacted(text)[:LONGEST]
            self._lines.append(text.encode(errors="backslashreplace").decode())
        except Exception:  # a record that cannot be formatted must not end what logs it
            self.handleError(record)

    def page(self) -> Listing:
        """Return the page of the records, the oldest first."""
        return Listing("last log lines", ("line",), [(line,) for line in list(self._lines)])
