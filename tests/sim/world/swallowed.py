"""Bugs that the product catches, logs and survives: in a tick, a background task, one replica.

One bug must not stop a server, so the product keeps running; a run of the simulator fails. Errors of a disk
and errors with a code (`OSError`, `NyalaError`) are expected in the log; any other exception is a bug.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from nyala.common.errors import NyalaError

PRODUCT = logging.getLogger("nyala")
EXPECTED = (NyalaError, OSError, asyncio.CancelledError)


class SwallowedErrors(logging.Handler):
    """A handler that passes on each unexpected exception in a record of the product's log."""

    def __init__(self, found: Callable[[BaseException], None]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on the record's exception, with the text of the record as a note."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EXPECTED):
            error.add_note(f"logged by {record.name}: {record.getMessage()}")
            self._found(error)


@contextlib.contextmanager
def swallowed(found: Callable[[BaseException], None]) -> Iterator[None]:
    """Pass on each unexpected exception that the product logs in the block."""
    handler = SwallowedErrors(found)
    PRODUCT.addHandler(handler)
    try:
        yield
    finally:
        PRODUCT.removeHandler(handler)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print nothing of the product's log in the block; what is meant to happen in a run is logged, too."""
    propagates, level, nowhere = PRODUCT.propagate, PRODUCT.level, logging.NullHandler()
    PRODUCT.propagate = False
    PRODUCT.setLevel(logging.ERROR)
    PRODUCT.addHandler(nowhere)
    try:
        yield
    finally:
        PRODUCT.removeHandler(nowhere)
        PRODUCT.setLevel(level)
        PRODUCT.propagate = propagates
